/* plan_auto.h: yoke plan --auto: which degrees for a cluster, and why. */
#ifndef YOKE_CLI_PLAN_AUTO_H
#define YOKE_CLI_PLAN_AUTO_H

#include "base/err.h"
#include "cli/settings.h"

int plan_advise(struct settings *s, struct warn_sink *warn, struct err *e);

#endif
