/* net.h: a group whose ranks talk by MPI messages. (Private to comm/; README.md explains.)
 *
 * MPI is initialised with MPI_THREAD_SERIALIZED: every call to it, from whichever thread and comm, is made
 * under one lock and does not block, except when groups are made.
 */
#ifndef YOKE_COMM_NET_H
#define YOKE_COMM_NET_H

#include <mpi.h>
#include <stdbool.h>
#include "comm/comm.h"
#include "comm/family.h"

/* The ranks of `world`, whose error handler returns. host: which host this rank is on, any numbering that all
 * agree on. share_memory: groups split from this one meet in shared memory if they are on one host. Takes
 * over `world`. Collective. */
int net_new(MPI_Comm world, int host, int share_memory, size_t max_bytes, struct comm **ret, struct err *e);
/* Watches the other hosts from here on (beat.h), for the world and all that is split from it. ends: a process
 * that loses ranks must end, by itself if need be. Collective; once, for what net_new made. */
int net_watch(struct comm *c, bool ends, struct err *e);
struct family *net_family(struct comm *c);
/* The lock: false if it cannot be had in so many milliseconds. */
bool net_lock_ms(int ms);
void net_unlock(void);
extern const struct comm_ops net_ops;

/* "MPI_Something: what MPI says about rc". */
int net_error(struct err *e, const char *call, int rc);

#endif
