/* place.h: where a rank runs: how many threads it has, which cores they are bound to, which hosts there are.
 *
 * Ranks of one host that may use the same cores share them out among themselves (cores_share); those that a
 * launcher has given different cores already keep what they have. A cgroup's CPU quota counts: where it
 * allows less than the cores at hand, threads are fewer than the rank's cores and move about within them.
 */
#ifndef YOKE_ENGINE_PLACE_H
#define YOKE_ENGINE_PLACE_H

#include <stdbool.h>
#include "base/buf.h"
#include "base/cpu.h"
#include "comm/comm.h"

/* A bound rank waits where an unbound one would move, so PLACE_AUTO binds only if, as the run starts, not
 * many others want to run. */
enum place_bind { PLACE_NONE, PLACE_AUTO, PLACE_CORES };

struct place {
    int threads;        /* at least 1 */
    struct cores cores; /* n 0: any */
    bool crowded;       /* the ranks that share these cores have more threads than there are */
};

/* Collective over all ranks. threads: as the user said; 0: this rank's share of the cores. */
int place_rank(struct comm *all, int threads, enum place_bind bind, struct place *ret, struct err *e);

/* The number of hosts that the ranks are on. */
int place_hosts(const struct comm *all);
/* "hosts n1 (ranks 0-3), n2 (ranks 4-7)", or "host n1"; appends. */
void place_describe(const struct comm *all, struct buf *out);

#endif
