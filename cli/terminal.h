/* terminal.h: what a person does while the program runs: presses Ctrl-C, types lines.
 *
 * The two are one module because they meet: a Ctrl-C that comes just before a read must wake that read. A
 * flag that the handler sets would be seen too late, and EINTR reaches only the thread that got the signal,
 * which may be a library's; so the handler also writes to a pipe, and a line is waited for on both.
 *
 * One per process, used by its main thread. Lines are read from standard input by descriptor: nothing else
 * may read it through stdio. */
#ifndef YOKE_CLI_TERMINAL_H
#define YOKE_CLI_TERMINAL_H

#include <stdbool.h>
#include "base/buf.h"
#include "base/err.h"

/* From here on Ctrl-C is noted instead of ending the process. Once per process. */
int interrupts_catch(struct err *e);
bool interrupted(void); /* since the last interrupts_forget() */
void interrupts_forget(void);

enum typed { TYPED_LINE, TYPED_END, TYPED_INTERRUPT };

/* Waits for the next line of standard input and appends it to `line`, without its end (\n or \r\n); the last
 * one may lack one. TYPED_INTERRUPT: Ctrl-C came first, and is forgotten; what was typed before it is dropped
 * (by the terminal). TYPED_END: also on a read error. */
enum typed terminal_read_line(struct buf *line);

#endif
