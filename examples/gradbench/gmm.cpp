// Log-posterior of a Gaussian mixture and its gradient, written by hand. See examples/gmm.py for the formula.
//
// Eight data are computed at a time, so that the inner loops have a fixed length or run along a column of Q_k.
#include <algorithm>
#include <cmath>

#include "driver.hpp"

constexpr int LANES = 8;

struct Mixture {
    const long d, k, n, packed;
    const double *alpha, *mu, *q, *l, *x;
    Values values = Values(1), derivatives;
    Values diagonal, sums, terms;       // exp(q): (k, d); sum(q): (k,); terms or shares of the data: (k, n)
    Values prior;                       // shares exp(alpha) / sum(exp(alpha)): (k,)
    Values centered, y, rows, centers;  // (d, LANES) twice, then weighted and transposed: (LANES, d) twice

    explicit Mixture(Problem& problem)
        : d(problem.sizes[0]), k(problem.sizes[1]), n(problem.sizes[2]), packed(d * (d - 1) / 2),
          alpha(problem.take(k)), mu(problem.take(k * d)), q(problem.take(k * d)), l(problem.take(k * packed)),
          x(problem.take(n * d)), derivatives(k + 2 * k * d + k * packed), diagonal(k * d), sums(k), terms(k * n),
          prior(k), centered(d * LANES), y(d * LANES), rows(d * LANES), centers(d * LANES) {}

    // Compute y = Q_j (x - mu_j) of LANES data from `first`. Data beyond the last one repeat it.
    void transform(long j, long first) {
        const double *mean = mu + j * d, *scale = &diagonal[j * d], *below = l + j * packed;
        for (int lane = 0; lane < LANES; ++lane) {
            const double* datum = x + std::min(first + lane, n - 1) * d;
            for (long i = 0; i < d; ++i) centered[i * LANES + lane] = datum[i] - mean[i];
        }
        for (long i = 0; i < d; ++i)
            for (int lane = 0; lane < LANES; ++lane) y[i * LANES + lane] = scale[i] * centered[i * LANES + lane];
        for (long i = 0; i < d; ++i) {
            const double* from = &centered[i * LANES];
            for (long r = i + 1; r < d; ++r, ++below)
                for (int lane = 0; lane < LANES; ++lane) y[r * LANES + lane] += *below * from[lane];
        }
    }

    void value() {
        double norm = 0;
        for (long i = 0; i < k * d; ++i) {
            diagonal[i] = std::exp(q[i]);
            norm += diagonal[i] * diagonal[i];
        }
        for (long i = 0; i < k * packed; ++i) norm += l[i] * l[i];
        for (long j = 0; j < k; ++j) {
            sums[j] = 0;
            for (long i = 0; i < d; ++i) sums[j] += q[j * d + i];
            for (long first = 0; first < n; first += LANES) {
                double squares[LANES] = {};
                transform(j, first);
                for (long i = 0; i < d; ++i)
                    for (int lane = 0; lane < LANES; ++lane)
                        squares[lane] += y[i * LANES + lane] * y[i * LANES + lane];
                for (long lane = 0; lane < std::min<long>(LANES, n - first); ++lane)
                    terms[j * n + first + lane] = alpha[j] + sums[j] - squares[lane] / 2;
            }
        }
        std::copy(alpha, alpha + k, prior.begin());
        values[0] = normalize(terms.data(), n, n) - n * normalize(prior.data(), 1, 1) - norm / 2;
    }

    // Return the sum of logsumexp over the columns of a matrix (k, count), and turn it into shares exp(t) / sum.
    double normalize(double* matrix, long count, long stride) {
        double total = 0;
        for (long i = 0; i < count; ++i) {
            double largest = matrix[i], sum = 0;
            for (long j = 1; j < k; ++j) largest = std::max(largest, matrix[j * stride + i]);
            for (long j = 0; j < k; ++j) sum += matrix[j * stride + i] = std::exp(matrix[j * stride + i] - largest);
            for (long j = 0; j < k; ++j) matrix[j * stride + i] /= sum;
            total += std::log(sum) + largest;
        }
        return total;
    }

    void derivative() {
        value();
        std::fill(derivatives.begin(), derivatives.end(), 0.0);
        for (long j = 0; j < k; ++j) differentiate_component(j);
    }

    void differentiate_component(long j) {
        double *by_mu = &derivatives[k + j * d], *by_q = &derivatives[k + k * d + j * d];
        double* by_l = derivatives.data() + k + 2 * k * d + j * packed;
        const double *scale = &diagonal[j * d], *share = &terms[j * n];
        double total = 0;
        Values sum(d);  // of share * y over the data
        for (long first = 0; first < n; first += LANES) {
            transform(j, first);
            for (int lane = 0; lane < LANES; ++lane) {
                const double weight = first + lane < n ? share[first + lane] : 0.0;
                total += weight;
                for (long i = 0; i < d; ++i) {
                    rows[lane * d + i] = weight * y[i * LANES + lane];
                    centers[lane * d + i] = centered[i * LANES + lane];
                }
            }
            for (long i = 0; i < d; ++i)
                for (int lane = 0; lane < LANES; ++lane) {
                    sum[i] += rows[lane * d + i];
                    by_q[i] -= rows[lane * d + i] * centers[lane * d + i];
                }
            double* column = by_l;
            for (long i = 0; i < d; column += d - 1 - i, ++i) {
                double c[LANES];
                for (int lane = 0; lane < LANES; ++lane) c[lane] = centers[lane * d + i];
                const double* from = &rows[i + 1];
                for (long r = 0; r < d - 1 - i; ++r) {
                    double change = 0;
                    for (int lane = 0; lane < LANES; ++lane) change += c[lane] * from[lane * d + r];
                    column[r] -= change;
                }
            }
        }
        derivatives[j] = total - n * prior[j];
        const double* below = l + j * packed;
        for (long i = 0; i < d; ++i) {
            by_q[i] = total + (by_q[i] - scale[i]) * scale[i];
            by_mu[i] = scale[i] * sum[i];
            for (long r = i + 1; r < d; ++r) by_mu[i] += *below++ * sum[r];
        }
        for (long i = 0; i < packed; ++i) by_l[i] -= l[j * packed + i];
    }
};

int main(int argc, char** argv) { return serve<Mixture>(argc, argv); }
