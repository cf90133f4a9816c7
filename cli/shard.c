/* yoke shard: a model packed for a split, written once and mapped by every run; or such a set, checked. */
#include "cli/command.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "cli/session.h"
#include "engine/shard.h"
#include "formats/shardset.h"
#include "formats/source.h"

static void show(void *ctx, uint64_t done, uint64_t total)
{
    struct progress *p = ctx;
    p->total = total;
    progress_update(p, done);
}

static uint64_t total_bytes(const struct shardset *set, uint64_t *ret_largest)
{
    uint64_t sum = 0;
    *ret_largest = 0;
    for (int r = 0; r < shardset_info(set)->ranks; r++) {
        sum += shardset_rank_bytes(set, r);
        *ret_largest = MAX(*ret_largest, shardset_rank_bytes(set, r));
    }
    return sum;
}

static int verify(const struct shardset *set, struct err *e)
{
    struct progress bar;
    enum source_state state = SOURCE_AWAY;
    const json_t *source = shardset_info(set)->source;
    uint64_t largest, total = total_bytes(set, &largest);
    progress_begin(&bar, "verifying", 0, PROGRESS_BYTES);
    int rc = shardset_verify(set, -1, show, &bar, e);
    progress_end(&bar);
    if (!rc && source)
        rc = source_compare(source, shardset_path(set), true, &state, e);
    if (rc)
        return rc;
    printf("%s: all checksums are right: %d tensors for %d rank%s, %.2f GiB\n", shardset_path(set),
           shardset_n_tensors(set), shardset_info(set)->ranks, shardset_info(set)->ranks > 1 ? "s" : "",
           (double)total / 0x1p30);
    if (source)
        printf("made from %s, which %s\n", json_string_value(json_object_get(source, "path")),
               state == SOURCE_SAME ? "is unchanged" : "is not there now");
    return 0;
}

static int write_set(struct settings *s, struct session *x, struct warn_sink *warn, struct err *e)
{
    struct progress bar;
    struct shard_options o = {.out = s->output,
                              .yoke = YOKE_VERSION,
                              .tp = (int)s->tp,
                              .pp = (int)s->pp,
                              .dp = (int)s->dp,
                              .ep = (int)s->ep,
                              .quant = (enum quant)s->quant,
                              .threads = s->threads ? (int)s->threads : cpu_count(),
                              .full = s->verify,
                              .progress = show,
                              .progress_ctx = &bar};
    if (s->tokenizer && strcmp(s->tokenizer, s->weights))
        o.config_dir = s->tokenizer;
    double before = clock_s();
    struct shardset *set;
    uint64_t largest;
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error with a name, not a signal */
    progress_begin(&bar, "writing", 0, PROGRESS_BYTES);
    int rc = shard_write(x->checkpoint, x->graph, &o, warn, e);
    progress_end(&bar);
    if (!rc)
        rc = shardset_open(s->output, &set, e);
    if (rc)
        return rc;
    double total = (double)total_bytes(set, &largest);
    printf("%s: %d rank%s, %.2f GiB, at most %.2f GiB a rank, in %.1f s\n", s->output,
           shardset_info(set)->ranks, shardset_info(set)->ranks > 1 ? "s" : "", total / 0x1p30,
           (double)largest / 0x1p30, clock_s() - before);
    if (s->verify)
        rc = verify(set, e);
    shardset_close(set);
    return rc;
}

int command_shard(struct settings *s, struct warn_sink *warn, struct err *e)
{
    struct session x;
    if (!s->output && !s->verify)
        return err_set(e, ERR_USAGE,
                       "give the folder to write as -o FOLDER, or --verify to check a set that is "
                       "there");
    int rc = session_open(s, 0, 1, 0, warn, &x, e);
    if (!rc && s->output)
        rc = write_set(s, &x, warn, e);
    else if (!rc && !checkpoint_shardset(x.checkpoint))
        rc = err_set(e, ERR_USAGE, "%s was not written by yoke shard: there are no checksums to compare with",
                     s->weights);
    else if (!rc)
        rc = verify(checkpoint_shardset(x.checkpoint), e);
    session_close(&x);
    return rc;
}
