/* transport.h: how the ranks of a run reach each other, said when it starts. */
#ifndef YOKE_CLI_TRANSPORT_H
#define YOKE_CLI_TRANSPORT_H

#include "cli/session.h"

/* By rank 0, once the team is open: one line on standard error with --stats or with several hosts; a warning
 * where tensor parallelism goes over the network. */
void transport_tell(const struct session *x, struct warn_sink *warn);

#endif
