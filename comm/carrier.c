/* carrier.c: what the bytes travel over, in words. */
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"

/* Open MPI's parts are libraries of their own; those that it does not use are closed when it has chosen. */
struct part {
    const char *name;
    int loaded;
};

static int find_part(struct dl_phdr_info *info, size_t size, void *ctx)
{
    struct part *p = ctx;
    (void)size;
    p->loaded |= info->dlpi_name && strstr(info->dlpi_name, p->name) != NULL;
    return 0;
}

static int is_loaded(const char *name)
{
    struct part p = {name, 0};
    dl_iterate_phdr(find_part, &p);
    return p.loaded;
}

static int one_host(const struct comm *c)
{
    for (int i = 1; i < c->size; i++)
        if (strcmp(c->peer[i].host, c->peer[0].host))
            return 0;
    return 1;
}

const char *comm_carrier(const struct comm *c)
{
    static const struct {
        const char *part, *words;
    } parts[] = {
        {"mca_pml_ucx", "UCX: RDMA where the network has it, else TCP"},
        {"mca_mtl_psm2", "Omni-Path (PSM2)"},
        {"mca_mtl_psm", "InfiniPath (PSM)"},
        {"mca_mtl_ofi", "libfabric: RDMA where the network has it, else TCP"},
        {"mca_btl_openib", "RDMA (verbs)"},
        {"mca_btl_uct", "RDMA (UCT)"},
        {"mca_btl_tcp", "TCP"},
    };
    if (strcmp(c->ops->name, "mpi/net"))
        return !strcmp(c->ops->name, "mpi/shm")   ? "shared memory"
               : !strcmp(c->ops->name, "threads") ? "threads of one process"
                                                  : "nothing to send";
    if (is_loaded("mca_pml_ob1") && is_loaded("mca_btl_vader") && one_host(c))
        return "MPI's shared memory";
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        if (is_loaded(parts[i].part))
            return parts[i].words;
    return "MPI messages";
}
