/* peer.h: who a rank is, and whether it still lives. (Private to comm/.) */
#ifndef YOKE_COMM_PEER_H
#define YOKE_COMM_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include "comm/comm.h"

void peer_self(struct comm_peer *ret, int rank);
/* True if the process has certainly ended (a zombie has; a pid that another process now bears, too). Only
 * for a peer of this host and process namespace. Does not allocate. */
bool peer_dead(const struct comm_peer *p);
const char *peer_describe(const struct comm_peer *p, char *buf, size_t n);

#endif
