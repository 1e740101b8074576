// Loss of a stacked LSTM with diagonal weights and its gradient, written by hand. See examples/lstm.py.
//
// The forward pass stores the gates of every character and layer. The reverse pass reads them backwards.
#include <algorithm>
#include <cmath>

#include "driver.hpp"

struct Network {
    const long l, c, b;
    const double *main, *extra, *state, *sequence;
    Values values = Values(1), derivatives;
    Values tape;  // for each character and layer: x, h before, c before, forget, ingate, outgate, change, tanh(c)
    Values hidden, cell, y;
    enum { X, HIDDEN, CELL, FORGET, INGATE, OUTGATE, CHANGE, SQUASHED, STORED };

    explicit Network(Problem& problem)
        : l(problem.sizes[0]), c(problem.sizes[1]), b(problem.sizes[2]), main(problem.take(8 * l * b)),
          extra(problem.take(3 * b)), state(problem.take(2 * l * b)), sequence(problem.take(c * b)),
          derivatives(8 * l * b + 3 * b), tape((c - 1) * l * STORED * b), hidden(l * b), cell(l * b), y((c - 1) * b) {}

    static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

    void start() {
        for (long layer = 0; layer < l; ++layer) {
            std::copy_n(state + 2 * layer * b, b, &hidden[layer * b]);
            std::copy_n(state + (2 * layer + 1) * b, b, &cell[layer * b]);
        }
    }

    void value() {
        double total = 0;
        start();
        for (long t = 0; t < c - 1; ++t) {
            const double* above = sequence + t * b;
            for (long layer = 0; layer < l; ++layer) {
                const double *w = main + 8 * layer * b, *bias = w + 4 * b;
                double *z = &tape[(t * l + layer) * STORED * b], *h = &hidden[layer * b], *s = &cell[layer * b];
                for (long i = 0; i < b; ++i) {
                    const double x = layer ? above[i] : above[i] * extra[i];
                    const double forget = sigmoid(x * w[i] + bias[i]);
                    const double ingate = sigmoid(h[i] * w[b + i] + bias[b + i]);
                    const double outgate = sigmoid(x * w[2 * b + i] + bias[2 * b + i]);
                    const double change = std::tanh(h[i] * w[3 * b + i] + bias[3 * b + i]);
                    z[X * b + i] = x;
                    z[HIDDEN * b + i] = h[i];
                    z[CELL * b + i] = s[i];
                    z[FORGET * b + i] = forget;
                    z[INGATE * b + i] = ingate;
                    z[OUTGATE * b + i] = outgate;
                    z[CHANGE * b + i] = change;
                    s[i] = s[i] * forget + ingate * change;
                    h[i] = outgate * (z[SQUASHED * b + i] = std::tanh(s[i]));
                }
                above = h;
            }
            const double* next = sequence + (t + 1) * b;
            double sum = 2, bits = 0;
            for (long i = 0; i < b; ++i) {
                const double prediction = above[i] * extra[b + i] + extra[2 * b + i];
                total += next[i] * prediction;
                bits += next[i];
                sum += y[t * b + i] = std::exp(prediction);
            }
            total -= bits * std::log(sum);
            for (long i = 0; i < b; ++i) y[t * b + i] = (y[t * b + i] * bits / sum - next[i]) / ((c - 1) * b);
        }
        values[0] = -total / ((c - 1) * b);
    }

    void derivative() {
        value();  // y now has the derivative of the loss by each prediction
        std::fill(derivatives.begin(), derivatives.end(), 0.0);
        double *by_in = &derivatives[8 * l * b], *by_out = by_in + b, *by_bias = by_out + b;
        Values by_hidden(l * b), by_cell(l * b), by_x(b);
        for (long t = c - 2; t >= 0; --t) {
            const double* top = &tape[(t * l + l - 1) * STORED * b];
            for (long i = 0; i < b; ++i) {
                by_out[i] += y[t * b + i] * top[OUTGATE * b + i] * top[SQUASHED * b + i];
                by_bias[i] += y[t * b + i];
                by_x[i] = y[t * b + i] * extra[b + i];
            }
            for (long layer = l - 1; layer >= 0; --layer) {
                const double *z = &tape[(t * l + layer) * STORED * b], *w = main + 8 * layer * b;
                double *by_w = &derivatives[8 * layer * b], *by_b = by_w + 4 * b;
                double *by_h = &by_hidden[layer * b], *by_s = &by_cell[layer * b];
                for (long i = 0; i < b; ++i) {
                    const double x = z[X * b + i], h = z[HIDDEN * b + i], squashed = z[SQUASHED * b + i];
                    const double forget = z[FORGET * b + i], ingate = z[INGATE * b + i];
                    const double outgate = z[OUTGATE * b + i], change = z[CHANGE * b + i];
                    const double from_h = by_h[i] + by_x[i];
                    const double from_s = by_s[i] + from_h * outgate * (1 - squashed * squashed);
                    const double of_forget = from_s * z[CELL * b + i] * forget * (1 - forget);
                    const double of_ingate = from_s * change * ingate * (1 - ingate);
                    const double of_outgate = from_h * squashed * outgate * (1 - outgate);
                    const double of_change = from_s * ingate * (1 - change * change);
                    by_w[i] += of_forget * x;
                    by_w[b + i] += of_ingate * h;
                    by_w[2 * b + i] += of_outgate * x;
                    by_w[3 * b + i] += of_change * h;
                    by_b[i] += of_forget;
                    by_b[b + i] += of_ingate;
                    by_b[2 * b + i] += of_outgate;
                    by_b[3 * b + i] += of_change;
                    by_x[i] = of_forget * w[i] + of_outgate * w[2 * b + i];
                    by_h[i] = of_ingate * w[b + i] + of_change * w[3 * b + i];
                    by_s[i] = from_s * forget;
                }
            }
            for (long i = 0; i < b; ++i) by_in[i] += by_x[i] * sequence[t * b + i];
        }
    }
};

int main(int argc, char** argv) { return serve<Network>(argc, argv); }
