/* A YAML configuration of any bytes: read, and made into settings for each command as `yoke ... --config`
 * would. */
#include <assert.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "cli/options.h"
#include "cli/prompts.h"
#include "cli/settings.h"
#include "cli/yaml.h"

/* Every node, as often as it stands in the tree: what was promised about size and depth must hold. */
static size_t visit(const struct yaml_node *n, int depth)
{
    struct buf b = BUF_INIT;
    size_t seen = 1;
    assert(depth <= YAML_MAX_DEPTH);
    yaml_describe(n, &b);
    yaml_position(n, &b);
    assert(!strchr(b.s, '\n') || strchr(n->where, '\n'));
    buf_release(&b);
    for (size_t i = 0; i < n->n; i++) {
        if (n->kind == YAML_MAP) {
            assert(n->key[i]->kind == YAML_SCALAR);
            assert(yaml_get(n, n->key[i]->text) == n->value[i]); /* no key twice */
            seen++;
        }
        seen += visit(n->value[i], depth + 1);
    }
    assert(seen <= n->weight);
    return seen;
}

static void drop(struct warn_sink *sink, const char *sentence)
{
    (void)sink;
    assert(*sentence);
}

static void use(const char *path, const char *command)
{
    struct warn_sink sink = {drop};
    struct settings s;
    struct err e = {0};
    const char *argv[] = {command, "--config", path, "-m", "M", "--parallel_config.model_parallel", "2"};
    int err = settings_parse((int)(sizeof(argv) / sizeof(*argv)), argv, &s, &sink, &e);
    assert(!err || (err == ERR_USAGE && *e.msg));
    if (err)
        return;
    for (size_t i = 0; i < OPT_COUNT; i++)
        assert(!s.origin[i] == !s.source[i]);
    settings_use_generation_config(&s, NULL, "", &sink);
    assert(s.tp >= 1 && s.sample.temperature >= 0 && s.sample.top_k >= 0);
    assert(s.sample.max_new_tokens || s.sample.max_length);
    json_t *config =
        json_pack("{s:i, s:f, s:b}", "num_hidden_layers", 2, "rope_theta", 1e4, "tie_word_embeddings", 1);
    settings_check_model(&s, config, &sink);
    json_decref(config);
    settings_release(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena *a = arena_new();
    struct yaml_node *root;
    struct err e = {0};
    int err = yaml_parse((const char *)data, size, "f.yaml", a, &root, &e);
    assert(!err || (err == ERR_USAGE && *e.msg));
    if (!err)
        assert(visit(root, 0) <= YAML_MAX_NODES + 1);
    arena_free(a);
    if (err)
        return 0;
    /* settings_parse() reads a file: one in memory. */
    int fd = memfd_create("yaml", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    char path[32];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    use(path, "run");
    use(path, "plan");
    use(path, "tokenize");
    close(fd);
    return 0;
}
