/* beat.h: notices that another host, or the link to it, is gone. (Private to comm/; README.md says why so.)
 *
 * A thread of each process exchanges a small MPI message twice a second with ranks of other hosts. When one
 * of them has not been heard from for BEAT_SILENCE_MS, it raises the family's fault, which ends all waiting.
 * Because the thread beats whatever the process does meanwhile, a rank deep in a computation is not taken for
 * a lost one; because the beats take the way of the payload, there is no interface or port to configure.
 *
 * The same thread sees to it that a process whose world is lost ends: if it may (`ends`), it does so itself
 * once the fault is BEAT_GRACE_MS old, with a line on standard error, for the main thread may be computing
 * for minutes, or be stuck in a call of MPI. The times add up to less than 10 s from a cut to the end of all
 * (README.md).
 */
#ifndef YOKE_COMM_BEAT_H
#define YOKE_COMM_BEAT_H

#include <mpi.h>
#include <stdbool.h>
#include "comm/comm.h"
#include "comm/family.h"

#define BEAT_EVERY_MS   500
#define BEAT_SILENCE_MS 4000
#define BEAT_GRACE_MS   2500

/* Which ranks does `me` exchange beats with? The hosts, in the order of their first ranks, form a ring; each
 * watches those at distances 1, 2, 4, ... both ways: up to five hosts all the others, and no more than 2 log2
 * of them ever. Between two such hosts each rank of the larger is paired with one of the smaller, in turn. A
 * rank's pairs are mutual. Returns their number; ret has room for n. */
int beat_partners(const int *host, int n, int me, int *ret);

struct beat;
/* comm: nobody else may use its tag `tag`. peer, host: [its size], copied. `ends`: see above. Fills *ret with
 * NULL if all ranks are on one host. Collective; to be called when all ranks are here. */
int beat_start(MPI_Comm comm, int tag, const struct comm_peer *peer, const int *host, struct family *f,
               bool ends, struct beat **ret, struct err *e);
/* Says goodbye to the others, so that they do not miss this rank. After a fault of a world that `ends`, the
 * thread goes on until it ends the process, as the rest of the way out leads through MPI. NULL is fine. */
void beat_stop(struct beat *b);

#endif
