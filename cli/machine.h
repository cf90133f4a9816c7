/* machine.h: the constants of the cost model as a file: `yoke bench` writes it, `yoke plan --auto` reads it.
 */
#ifndef YOKE_CLI_MACHINE_H
#define YOKE_CLI_MACHINE_H

#include <jansson.h>
#include "base/err.h"
#include "plan/cost.h"

/* "~/.cache/yoke/bench.json" (XDG_CACHE_HOME counts); NULL without a home. xfree() it. */
char *machine_default_path(void);
/* Overlays what the file has on *m. A host's bandwidth grows with its cores, where m->cores differs from the
 * cores measured. */
int machine_read(const char *path, struct cost_machine *m, struct err *e);
/* m->cores: the cores measured with. */
json_t *machine_json(const struct cost_machine *m);
/* Makes the folder too, one level deep. */
int machine_write(const char *path, const json_t *o, struct err *e);

/* "100Gb", "12.5GB", "1Gb,50us": bytes/s that arrive (9/10 of the rate), and seconds of a message. */
int machine_parse_net(const char *text, struct cost_link *ret, struct err *e);

#endif
