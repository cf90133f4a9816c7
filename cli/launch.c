/* yoke launch: the settings, as a command line for mpirun. */
#include "cli/launch.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "cli/command.h"
#include "cli/options.h"

/* --- hosts --- */

void hosts_release(struct launch_hosts *h)
{
    xfree(h->v);
    *h = (struct launch_hosts){0};
}

static int bad_host(const char *where, const char *text, size_t n, struct err *e)
{
    return err_set(e, ERR_USAGE, "%s: \"%.*s\" should be a host's name, or name:ranks such as n1:4", where,
                   (int)MIN(n, (size_t)80), text);
}

/* A number of ranks, 1 to 65536, at text[0..n). */
static int parse_slots(const char *text, size_t n)
{
    int v = 0;
    for (size_t i = 0; i < n; i++)
        v = isdigit((unsigned char)text[i]) && v <= 1 << 16 ? 10 * v + text[i] - '0' : 1 << 30;
    return n && v >= 1 && v <= 1 << 16 ? v : -1;
}

/* Names reach ssh's command line: no blanks, no quotes, no leading dash. */
static int add_host(struct launch_hosts *h, const char *text, size_t n, const char *where, struct err *e)
{
    const char *colon = memchr(text, ':', n);
    size_t n_name = colon ? (size_t)(colon - text) : n;
    struct launch_host x = {0};
    if (!n_name || n_name >= sizeof(x.name) || *text == '-')
        return bad_host(where, text, n, e);
    for (size_t i = 0; i < n_name; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("._-@", text[i]))
            return bad_host(where, text, n, e);
    memcpy(x.name, text, n_name);
    if (colon && (x.slots = parse_slots(colon + 1, n - n_name - 1)) < 0)
        return bad_host(where, text, n, e);
    XGROW(h->v, h->n, h->cap);
    h->v[h->n++] = x;
    return 0;
}

int hosts_parse_list(const char *text, struct launch_hosts *h, struct err *e)
{
    for (;;) {
        size_t n = strcspn(text, ",");
        int rc = add_host(h, text, n, "--hosts", e);
        if (rc || !text[n])
            return rc;
        text += n + 1;
    }
}

static int parse_host_line(char *line, const char *where, struct launch_hosts *h, struct err *e)
{
    char *rest, *word;
    line[strcspn(line, "#\n")] = 0;
    word = strtok_r(line, " \t\r", &rest);
    if (!word)
        return 0;
    int rc = add_host(h, word, strlen(word), where, e);
    while (!rc && (word = strtok_r(NULL, " \t\r", &rest))) {
        if (!strncmp(word, "max_slots=", 10) || !strncmp(word, "max-slots=", 10))
            continue; /* Open MPI's; we never put more on a host than it has slots */
        int slots = strncmp(word, "slots=", 6) ? -1 : parse_slots(word + 6, strlen(word + 6));
        if (slots < 0)
            return err_set(e, ERR_USAGE, "%s: \"%.80s\" should be slots=N", where, word);
        h->v[h->n - 1].slots = slots;
    }
    return rc;
}

int hosts_parse_file(const char *path, struct launch_hosts *h, struct err *e)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return err_errno(e, "cannot read %s", path);
    char line[1024];
    int rc = 0;
    for (int i = 1; !rc && fgets(line, sizeof(line), f); i++) {
        char *where = xasprintf("%s:%d", path, i);
        if (strlen(line) == sizeof(line) - 1)
            rc = err_set(e, ERR_USAGE, "%s: a line of more than %zu characters", where, sizeof(line) - 2);
        else
            rc = parse_host_line(line, where, h, e);
        xfree(where);
    }
    if (!rc && ferror(f))
        rc = err_errno(e, "cannot read %s", path);
    fclose(f);
    return rc || h->n ? rc : err_set(e, ERR_USAGE, "%s names no host", path);
}

int hosts_assign(struct launch_hosts *h, int n, struct err *e)
{
    int left = n, open = 0;
    for (size_t i = 0; i < h->n; i++) {
        h->v[i].ranks = MIN(h->v[i].slots, left);
        left -= h->v[i].ranks;
        open += !h->v[i].slots;
    }
    if (left && !open)
        return err_set(e, ERR_USAGE, "the hosts take %d ranks as they are listed, but there are %d", n - left,
                       n);
    for (size_t i = 0, k = 0; i < h->n; i++)
        if (!h->v[i].slots) { /* the first ones take one more */
            h->v[i].ranks = left / open + ((int)k < left % open);
            k++;
        }
    return 0;
}

static bool is_here(const char *name)
{
    char host[256] = "";
    gethostname(host, sizeof(host) - 1);
    return !strcmp(name, host) || !strcmp(name, "localhost") || !strcmp(name, "127.0.0.1");
}

/* --- the command to launch --- */

/* It is parsed here too, so that what is wrong with it is said once and at once. */
static int read_command(const struct settings *s, struct settings *ret, struct err *e)
{
    if (!s->n_rest)
        return err_set(e, ERR_USAGE, "nothing to launch: yoke launch -n 4 -- run -m MODEL --tp 4 -p TEXT");
    const char *name = s->rest[0];
    if (strcmp(name, command_name(CMD_RUN)) && strcmp(name, command_name(CMD_LOGITS)))
        return err_set(e, ERR_USAGE,
                       "'yoke %.80s' is nothing to launch on several ranks; 'yoke run' and 'yoke logits' are",
                       name);
    int rc = settings_parse(s->n_rest, s->rest, ret, NULL, e);
    if (!rc && ret->help)
        rc = err_set(e, ERR_USAGE, "'yoke %s --help' needs no launching", name);
    return rc;
}

/* Ranks are tp x pp x dp; a configuration may also count ep as a dimension of its own. */
static int count_ranks(const struct settings *s, const struct settings *command, int *ret, struct err *e)
{
    long long degrees = command->tp * command->pp * command->dp, n = s->ranks ? s->ranks : degrees;
    if (degrees > 1 << 16)
        return err_set(e, ERR_SPLIT,
                       "tp %lld x pp %lld x dp %lld are %lld ranks; at most 65536 can be started",
                       (long long)command->tp, (long long)command->pp, (long long)command->dp, degrees);
    if (n != degrees && n != degrees * command->ep && n > 1)
        return err_set(e, ERR_SPLIT,
                       "%s %lld, but the command splits the model over %lld rank%s (tp %lld x pp %lld x dp "
                       "%lld); give -n %lld, or degrees that multiply to %lld",
                       s->source[OPT_ranks], n, degrees, degrees > 1 ? "s" : "", (long long)command->tp,
                       (long long)command->pp, (long long)command->dp, degrees, n);
    *ret = (int)n;
    return 0;
}

/* --- the world around --- */

/* Does the user say what this parameter of Open MPI shall be? */
static bool user_sets(const char *user_args, const char *parameter)
{
    char *name = xasprintf("OMPI_MCA_%s", parameter);
    bool found = getenv(name) || (user_args && strstr(user_args, parameter));
    xfree(name);
    return found;
}

static char *find_program(const char *name)
{
    const char *path = getenv("PATH");
    for (const char *at = path ? path : "/usr/bin:/bin"; *at;) {
        size_t n = strcspn(at, ":");
        char *file = xasprintf("%.*s/%s", (int)n, n ? at : ".", name);
        if (!access(file, X_OK))
            return file;
        xfree(file);
        at += n + (at[n] == ':');
    }
    return NULL;
}

/* The batch system in whose allocation we are: mpirun finds its hosts by itself. */
static const char *batch_system(void)
{
    static const char *const known[][2] = {
        {"SLURM_JOB_ID", "Slurm"}, {"PBS_JOBID", "PBS"}, {"LSB_JOBID", "LSF"}, {"PE_HOSTFILE", "SGE"}};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (getenv(known[i][0]))
            return known[i][1];
    return NULL;
}

int make_folders(const char *path, struct err *e)
{
    char *p = xstrdup(path);
    int rc = 0;
    for (char *c = p + 1; !rc; c++) {
        char was = *c;
        if (was && was != '/')
            continue;
        *c = 0;
        struct stat st;
        if (mkdir(p, 0777) && (errno != EEXIST || stat(p, &st) || !S_ISDIR(st.st_mode)))
            rc = err_errno(e, "cannot make the folder %s", p);
        *c = was;
        if (!was)
            break;
    }
    xfree(p);
    return rc;
}

/* Logs of an earlier run with more ranks would be taken for this one's. */
static void remove_old_logs(const char *dir)
{
    for (int i = 0, missing = 0; missing < 64; i++) {
        char *file = xasprintf("%s/rank_%d.log", dir, i);
        missing = unlink(file) ? missing + 1 : 0;
        xfree(file);
    }
}

/* --- mpirun's command line --- */

struct words {
    struct arena *mem;
    char **v;
    size_t n, cap;
};

static void word(struct words *w, const char *text)
{
    XGROW(w->v, w->n, w->cap);
    w->v[w->n++] = text ? arena_strdup(w->mem, text) : NULL;
}

static void add_hosts(struct words *w, const struct launch_hosts *h)
{
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < h->n; i++)
        if (h->v[i].ranks)
            buf_addf(&b, "%s%s:%d", b.len ? "," : "", h->v[i].name, h->v[i].ranks);
    word(w, "--host");
    word(w, b.s);
    if (strchr(b.s, '.')) { /* else ssh gets the name without its domain */
        word(w, "--mca");
        word(w, "orte_keep_fqdn_hostnames");
        word(w, "1");
    }
    buf_release(&b);
}

static void add_environment(struct words *w)
{
    for (char **v = environ; *v; v++)
        if (!strncmp(*v, "YOKE_", 5)) {
            word(w, "-x");
            word(w, arena_strndup(w->mem, *v, strcspn(*v, "=")));
        }
}

static void add_parameter(struct words *w, const char *user_args, const char *parameter, const char *value)
{
    if (user_sets(user_args, parameter))
        return;
    word(w, "--mca");
    word(w, parameter);
    word(w, value);
}

/* That a host is gone shows to mpirun and its daemons in 5 to 6 seconds, where it would take minutes by
 * default; not sooner, because the ranks notice after 4 (comm/beat.h), and can say which of them is meant. */
static void add_keepalives(struct words *w, const char *user_args)
{
    add_parameter(w, user_args, "oob_tcp_keepalive_time", "1");
    add_parameter(w, user_args, "oob_tcp_keepalive_intvl", "1");
    add_parameter(w, user_args, "oob_tcp_keepalive_probes", "5");
}

/* The same for ssh. BatchMode because mpirun runs in the background (watch.c), where a password could not be
 * typed: better an error than ssh waiting for one. Another agent than ssh has arguments of its own. */
static void add_ssh(struct words *w, const char *user_args)
{
    if (!user_sets(user_args, "plm_rsh_agent"))
        add_parameter(w, user_args, "plm_rsh_args",
                      "-o BatchMode=yes -o ServerAliveInterval=1 -o ServerAliveCountMax=6");
}

struct launch {
    const struct settings *s;
    int n;
    struct launch_hosts hosts; /* none: this host, or the batch system's */
    bool remote;               /* one of them is not this one */
    const char *batch;
    char *self, *log_dir, *mpirun; /* xfree() */
};

static void make_words(const struct launch *l, struct words *w)
{
    char number[16];
    const char *at = l->s->mpirun_args, *one;
    size_t n;
    word(w, l->mpirun);
    if (geteuid() == 0)
        word(w, "--allow-run-as-root");
    word(w, "-n");
    snprintf(number, sizeof(number), "%d", l->n);
    word(w, number);
    word(w, "--bind-to"); /* yoke shares the cores out itself, and knows its threads */
    word(w, "none");
    word(w, "--map-by");
    word(w, l->batch ? "slot" : "slot:OVERSUBSCRIBE");
    if (l->hosts.n)
        add_hosts(w, &l->hosts);
    if (l->remote)
        add_ssh(w, l->s->mpirun_args);
    if (l->remote || l->batch)
        add_keepalives(w, l->s->mpirun_args);
    add_environment(w);
    while ((one = next_word(&at, &n)))
        word(w, arena_strndup(w->mem, one, n));
    word(w, l->self);
    word(w, "launch-rank");
    word(w, l->log_dir);
    for (int i = 0; i < l->s->n_rest; i++)
        word(w, l->s->rest[i]);
    word(w, NULL);
}

static int read_hosts(struct launch *l, struct err *e)
{
    const struct settings *s = l->s;
    if (s->hosts && s->hostfile)
        return err_set(e, ERR_USAGE, "%s and %s: name the hosts in one way", s->source[OPT_hosts],
                       s->source[OPT_hostfile]);
    int rc = 0;
    if (s->hosts)
        rc = hosts_parse_list(s->hosts, &l->hosts, e);
    else if (s->hostfile)
        rc = hosts_parse_file(s->hostfile, &l->hosts, e);
    else
        l->batch = batch_system();
    if (!rc && l->hosts.n)
        rc = hosts_assign(&l->hosts, l->n, e);
    for (size_t i = 0; i < l->hosts.n; i++)
        l->remote |= l->hosts.v[i].ranks && !is_here(l->hosts.v[i].name);
    return rc;
}

static int find_programs(struct launch *l, struct err *e)
{
    l->mpirun = find_program("mpirun");
    if (!l->mpirun) {
        err_set(e, ERR_FAIL,
                "mpirun is not in the PATH, and several processes need it: install Open MPI (Debian and "
                "Ubuntu: openmpi-bin), or leave 'launch -n %d --' out to run the ranks in one process",
                l->n);
        return 127;
    }
    if (l->remote && !user_sets(l->s->mpirun_args, "plm_rsh_agent")) {
        char *ssh = find_program("ssh");
        if (!ssh) {
            err_set(e, ERR_FAIL,
                    "ssh is not in the PATH, and mpirun reaches other hosts with it: install it (Debian and "
                    "Ubuntu: openssh-client)");
            return 127;
        }
        xfree(ssh);
    }
    return 0;
}

static int prepare(struct launch *l, struct err *e)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n < 0)
        return err_errno(e, "cannot find out where this program is");
    l->self = xstrndup(self, (size_t)n);
    int rc = find_programs(l, e);
    if (!rc)
        rc = make_folders(l->s->log_dir, e);
    if (rc)
        return rc;
    char real[PATH_MAX];
    if (!realpath(l->s->log_dir, real))
        return err_errno(e, "%s", l->s->log_dir);
    l->log_dir = xstrdup(real);
    remove_old_logs(l->log_dir);
    return 0;
}

/* N=1 just runs. */
static int become(const struct settings *s, struct err *e)
{
    char **argv;
    XNEW_N(argv, (size_t)s->n_rest + 2);
    argv[0] = (char *)"yoke";
    for (int i = 0; i < s->n_rest; i++)
        argv[i + 1] = (char *)s->rest[i];
    execv("/proc/self/exe", argv);
    xfree(argv);
    return err_errno(e, "cannot start yoke again");
}

static void announce(const struct launch *l, struct warn_sink *warn)
{
    struct buf where = BUF_INIT;
    for (size_t i = 0; i < l->hosts.n; i++)
        if (l->hosts.v[i].ranks)
            buf_addf(&where, "%s%s (%d)", where.len ? ", " : "", l->hosts.v[i].name, l->hosts.v[i].ranks);
    if (l->batch)
        buf_addf(&where, "the hosts of the %s allocation", l->batch);
    if (!where.len)
        buf_adds(&where, "this host");
    fprintf(stderr, "yoke: %d ranks on %s, started by mpirun; logs in %s\n", l->n, where.s, l->s->log_dir);
    buf_release(&where);
    if (!l->hosts.n && !l->batch && l->n > cpu_count())
        warn_to(warn, "%d ranks share %d core%s: they will wait for each other", l->n, cpu_count(),
                cpu_count() > 1 ? "s" : "");
}

static int start(struct launch *l, const struct settings *command, struct warn_sink *warn, struct err *e)
{
    int rc = read_hosts(l, e);
    if (!rc && l->n == 1 && !l->hosts.n)
        return become(l->s, e);
    if (!rc)
        rc = prepare(l, e);
    if (rc)
        return rc;
    announce(l, warn);
    struct words w = {.mem = arena_new()};
    make_words(l, &w);
    bool from_file = command->prompts_file && strcmp(command->prompts_file, "-");
    struct watch_options o = {.argv = w.v,
                              .log_dir = l->s->log_dir,
                              .hosts = &l->hosts,
                              .interactive = command->interactive,
                              .reads_stdin = !command->prompts.n && !from_file && !command->ids.n};
    rc = watch_mpirun(&o, e);
    xfree(w.v);
    arena_free(w.mem);
    return rc;
}

int command_launch(struct settings *s, struct warn_sink *warn, struct err *e)
{
    struct settings command = {0};
    struct launch l = {.s = s};
    if (getenv("OMPI_COMM_WORLD_SIZE"))
        return err_set(e, ERR_USAGE, "this process was itself started by an MPI launcher; launch once");
    int rc = read_command(s, &command, e);
    if (!rc)
        rc = count_ranks(s, &command, &l.n, e);
    if (!rc)
        rc = start(&l, &command, warn, e);
    hosts_release(&l.hosts);
    xfree(l.self);
    xfree(l.log_dir);
    xfree(l.mpirun);
    settings_release(&command);
    return rc;
}
