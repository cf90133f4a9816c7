/* help.h: all that is printed about options: --help, `yoke help NAME`, docs/options.md. Text is appended. */
#ifndef YOKE_CLI_HELP_H
#define YOKE_CLI_HELP_H

#include "base/buf.h"
#include "base/err.h"
#include "cli/settings.h"

enum { HELP_COLUMNS = 100 };

void help_overview(struct buf *out);                /* yoke --help */
void help_command(enum command c, struct buf *out); /* yoke run --help */
void help_markdown(struct buf *out);                /* docs/options.md */
/* A flag, an option's name, a YAML key (its last part will do), or a command. */
int help_topic(const char *topic, struct buf *out, struct err *e);

#endif
