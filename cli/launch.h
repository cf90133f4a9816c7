/* launch.h: starting ranks, in two halves.
 *
 * `yoke launch` (launch.c) turns its settings into mpirun's command line and runs it (watch.c). mpirun starts
 * not the command itself but, for each rank, `yoke launch-rank`, a supervisor (rank.c) that starts the
 * command as its child, writes the child's standard error to the rank's log, and says how it ended, with the
 * last lines, in a report that travels to the launching host with mpirun's standard error. So a rank that was
 * killed has last words too, wherever it ran, and nothing but mpirun's own channels is needed.
 *
 * Of rank 0, standard output is the launcher's standard output, byte for byte, and standard error is shown as
 * it comes.
 */
#ifndef YOKE_CLI_LAUNCH_H
#define YOKE_CLI_LAUNCH_H

#include <signal.h>
#include <stdbool.h>
#include "base/buf.h"
#include "base/err.h"
#include "cli/settings.h"

/* --- hosts --- */

struct launch_host {
    char name[256];
    int slots; /* ranks it takes; 0: an even share of what is left */
    int ranks; /* that it gets */
};

struct launch_hosts {
    struct launch_host *v;
    size_t n, cap;
};

void hosts_release(struct launch_hosts *h);
/* "a,b:4". Appends. */
int hosts_parse_list(const char *text, struct launch_hosts *h, struct err *e);
/* A host a line, "n1", "n1:4" or "n1 slots=4"; # begins a comment. */
int hosts_parse_file(const char *path, struct launch_hosts *h, struct err *e);
/* Fills `ranks`: neighbouring ranks on one host, in the order given. */
int hosts_assign(struct launch_hosts *h, int n, struct err *e);

/* --- how a rank ended --- */

#define REPORT_LINES 12
#define REPORT_BYTES 3000 /* of last lines; the whole report fits what a pipe takes at once */

struct rank_end {
    int rank, pid;
    int code;   /* the exit code, 128 + the signal where it was one */
    int signal; /* 0: it exited */
    char host[64];
    struct buf lines; /* the last ones, each with its newline */
};

/* One line that begins with REPORT_MARK, which no text contains. */
#define REPORT_MARK '\x1e'
void rank_end_write(const struct rank_end *x, struct buf *out);
/* The line without mark and newline. False if it is none. */
bool rank_end_read(const char *line, struct rank_end *ret);
/* "rank 2 on host n1 (pid 71) was killed by signal 9 (Killed)" */
void rank_end_describe(const struct rank_end *x, struct buf *out);

/* --- the halves --- */

struct watch_options {
    char *const *argv; /* mpirun and its arguments */
    const char *log_dir;
    const struct launch_hosts *hosts; /* none: this one, or those of the batch system */
    bool reads_stdin;                 /* the command does; else it gets none */
    bool interactive;                 /* Ctrl-C stops an answer, not the run */
};
/* Runs mpirun to its end. 0, an error, or a rank's exit code with the sentence in e. */
int watch_mpirun(const struct watch_options *o, struct err *e);

/* Set in the environment of a command that has a supervisor: its rank may speak for itself. */
#define LAUNCH_SUPERVISED "YOKE_SUPERVISED"

/* By this signal the command tells its supervisor that it has said on standard error which rank or host is
 * lost, and will end: the report goes out now, for the end itself takes longer than the launcher can wait. */
#define LAUNCH_LOST SIGUSR2

/* `yoke launch-rank LOG_DIR COMMAND ...`, for mpirun only. Returns the exit code. */
int launch_rank(int argc, char **argv);

/* mkdir -p */
int make_folders(const char *path, struct err *e);

#endif
