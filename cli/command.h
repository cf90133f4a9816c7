/* command.h: the subcommands. One file each (run.c, tokenize.c, ...); main.c holds the table.
 *
 * A command gets filled, checked settings; it prints its result on standard output and returns 0 or an error,
 * which main prints, or an exit code (> 0) for main to end with, once it has printed the sentence. It prints
 * no error itself. Warnings go to the sink. */
#ifndef YOKE_CLI_COMMAND_H
#define YOKE_CLI_COMMAND_H

#include "base/err.h"
#include "cli/settings.h"

int command_run(struct settings *s, struct warn_sink *warn, struct err *e);
int command_plan(struct settings *s, struct warn_sink *warn, struct err *e);
int command_bench(struct settings *s, struct warn_sink *warn, struct err *e);
int command_logits(struct settings *s, struct warn_sink *warn, struct err *e);
int command_tokenize(struct settings *s, struct warn_sink *warn, struct err *e);
int command_launch(struct settings *s, struct warn_sink *warn, struct err *e);
int command_shard(struct settings *s, struct warn_sink *warn, struct err *e);
int command_template(struct settings *s, struct warn_sink *warn, struct err *e);

/* The process's exit code for an error code (0 included); docs/options.md lists them. */
int exit_code_of(int code);
const char *exit_meaning(int exit_code); /* NULL: none is documented */

#endif
