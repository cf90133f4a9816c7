/* print.h: what the dumps of graphs and of plans share: layers that print equally are folded into one line.
 *
 *     struct print_layers layers = PRINT_LAYERS_INIT;
 *     for (each layer)
 *         print into layers.text, then print_layer(&layers, number, out);
 *     print_layers_end(&layers, out);
 */
#ifndef YOKE_GRAPH_PRINT_H
#define YOKE_GRAPH_PRINT_H

#include "base/buf.h"

struct print_layers {
    struct buf text;  /* of the layer at hand */
    struct buf shown; /* of layer `first`, the last one written out */
    int first, last;  /* layers first + 1 to last are as layer `first` */
};
#define PRINT_LAYERS_INIT                                                                                    \
    {                                                                                                        \
        .text = BUF_INIT, .shown = BUF_INIT, .first = -1, .last = -1                                         \
    }

/* Writes the layer that stands in p->text to out, or keeps it back, as it is like the one before; clears the
 * text. layer < 0: what stands outside the layers, never folded. */
void print_layer(struct print_layers *p, int layer, struct buf *out);
/* Writes what is kept back, and releases p. */
void print_layers_end(struct print_layers *p, struct buf *out);

/* A weight's name without its layer: "model.layers.3.mlp.up_proj.weight" -> "mlp.up_proj.weight". */
const char *print_short_name(const char *name);

#endif
