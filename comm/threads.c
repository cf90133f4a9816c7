/* threads.c: ranks are threads of one process. */
#include "comm/comm.h"

#include "comm/shm.h"

int comm_threads_new(int n, size_t max_bytes, struct comm **ret, struct err *e)
{
    return shm_threads_new(n, max_bytes, ret, e);
}
