/* shm.h: a group whose ranks share memory: threads of one process, or processes of one host. (Private to
 * comm/; README.md explains the protocol.)
 *
 * One region per group: a head, one 64-byte line per rank with the number of the round it has reached, one
 * channel per ordered pair for send and recv, and per rank an area that it alone writes: two message slots
 * and the bytes of its outgoing channels. Processes find the region through /proc/PID/fd of the rank that
 * made it (a memfd): it has no name, so nothing is left behind however the job ends, and the size of
 * /dev/shm does not matter.
 */
#ifndef YOKE_COMM_SHM_H
#define YOKE_COMM_SHM_H

#include "comm/comm.h"
#include "comm/family.h"

#define SHM_RANKS_MOST 512

/* n endpoints of a group of threads. */
int shm_threads_new(int n, size_t max_bytes, struct comm **ret, struct err *e);

/* Splits `parent`, whatever its kind, into groups of processes that meet in shared memory; collective. All
 * ranks with the same color >= 0 must be on one host. f: the family to belong to; NULL: each new group is the
 * root of a family of its own. *ret is NULL for a negative color. On failure of any rank all fail. */
int shm_processes_split(struct comm *parent, int color, int key, size_t max_bytes, struct family *f,
                        struct comm **ret, struct err *e);

struct family *shm_family(struct comm *c);

/* The operations of a group of processes, for whoever wraps them. */
extern const struct comm_ops shm_process_ops;

#endif
