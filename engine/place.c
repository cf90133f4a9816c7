#include "engine/place.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"

/* What ranks must know of each other to share cores out. */
struct card {
    char machine[64];
    uint8_t may[CPU_MAX / 8];
    int32_t running; /* on this machine, at this moment; last: see find_sharers */
};

struct sharers {
    int index, count; /* this one's place among those that share its cores, and how many they are */
    int running;      /* as the one who saw least saw it */
};

/* Containers of one machine may have names of their own, and those of two the same one; the kernel's boot is
 * what cores belong to. */
static void machine_name(char *ret, size_t n)
{
    memset(ret, 0, n);
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!f || fscanf(f, "%63s", ret) != 1)
        gethostname(ret, n - 1);
    if (f)
        fclose(f);
}

/* Tasks that run or wait for a core. */
static int running_tasks(void)
{
    int n = 0;
    FILE *f = fopen("/proc/loadavg", "re");
    if (!f || fscanf(f, "%*f %*f %*f %d", &n) != 1)
        n = 0;
    if (f)
        fclose(f);
    return n;
}

static int find_sharers(struct comm *all, const struct cores *mine, struct sharers *ret, struct err *e)
{
    struct card *card;
    size_t *bytes;
    XNEW_N(card, (size_t)all->size);
    XNEW_N(bytes, (size_t)all->size);
    for (int i = 0; i < all->size; i++)
        bytes[i] = sizeof(*card);
    struct card *me = &card[all->rank];
    machine_name(me->machine, sizeof(me->machine));
    for (int i = 0; i < mine->n; i++)
        me->may[mine->cpu[i] / 8] |= (uint8_t)(1 << mine->cpu[i] % 8);
    me->running = running_tasks();
    struct card self = *me;
    int rc = comm_allgather(all, &self, card, bytes, e);
    *ret = (struct sharers){.running = self.running};
    for (int i = 0; i < all->size; i++)
        if (!memcmp(&card[i], &self, offsetof(struct card, running))) {
            ret->index += i < all->rank;
            ret->count += 1;
            ret->running = MIN(ret->running, card[i].running);
        }
    xfree(card);
    xfree(bytes);
    return rc;
}

int place_rank(struct comm *all, int threads, enum place_bind bind, struct place *ret, struct err *e)
{
    struct cores mine;
    struct sharers sharers;
    cores_allowed(&mine);
    int usable = cpu_count(), rc = find_sharers(all, &mine, &sharers, e);
    if (rc)
        return rc;
    int others = sharers.running - sharers.count;
    ret->cores.n = 0;
    if (bind == PLACE_CORES || (bind == PLACE_AUTO && others <= MAX(1, mine.n / 4)))
        cores_share(NULL, &mine, sharers.index, sharers.count, &ret->cores);
    bool own = ret->cores.n && usable >= mine.n; /* not where a quota allows less than its cores */
    int share = own ? ret->cores.n : MAX(1, usable / sharers.count);
    ret->threads = threads ? threads : share;
    ret->crowded = ret->threads > share;
    return 0;
}

static bool host_seen(const struct comm *all, int rank)
{
    for (int i = 0; i < rank; i++)
        if (!strcmp(all->peer[i].host, all->peer[rank].host))
            return true;
    return false;
}

int place_hosts(const struct comm *all)
{
    int n = 0;
    for (int i = 0; i < all->size; i++)
        n += !host_seen(all, i);
    return n;
}

static void add_ranks_of(const struct comm *all, const char *host, struct buf *out)
{
    int n = 0;
    for (int i = 0; i < all->size; i++)
        n += !strcmp(all->peer[i].host, host);
    const char *before = n > 1 ? "ranks " : "rank ";
    for (int i = 0, j; i < all->size; i = j) {
        for (j = i; j < all->size && !strcmp(all->peer[j].host, host);)
            j++;
        if (j == i) {
            j++;
            continue;
        }
        buf_addf(out, j - i > 1 ? "%s%d-%d" : "%s%d", before, i, j - 1);
        before = ",";
    }
}

void place_describe(const struct comm *all, struct buf *out)
{
    int hosts = place_hosts(all);
    const char *before = hosts > 1 ? "hosts " : "host ";
    for (int i = 0; i < all->size; i++) {
        if (host_seen(all, i))
            continue;
        buf_addf(out, "%s%s", before, all->peer[i].host);
        if (hosts > 1) {
            buf_adds(out, " (");
            add_ranks_of(all, all->peer[i].host, out);
            buf_addc(out, ')');
        }
        before = ", ";
    }
}
