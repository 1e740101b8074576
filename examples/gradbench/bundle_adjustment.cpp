// Residuals of bundle adjustment and their Jacobians, written by hand. See examples/bundle_adjustment.py.
//
// The result of an observation has 31 numbers: two rows of 15 (camera, point, weight), and one of 1 - w^2 by w.
#include <cmath>

#include "driver.hpp"

struct Observations {
    const long count;
    const double *cameras, *points, *weights, *features;
    Values values, derivatives;

    explicit Observations(Problem& problem)
        : count(problem.sizes[0]), cameras(problem.take(11 * count)), points(problem.take(3 * count)),
          weights(problem.take(count)), features(problem.take(2 * count)), values(3 * count), derivatives(31 * count) {}

    void value() {
        for (long i = 0; i < count; ++i) {
            const double *c = cameras + 11 * i, *x = points + 3 * i, w = weights[i];
            const double angle = std::sqrt(c[0] * c[0] + c[1] * c[1] + c[2] * c[2]);
            const double a[3] = {c[0] / angle, c[1] / angle, c[2] / angle};
            const double v[3] = {x[0] - c[3], x[1] - c[4], x[2] - c[5]};
            const double cosine = std::cos(angle), sine = std::sin(angle);
            const double along = (a[0] * v[0] + a[1] * v[1] + a[2] * v[2]) * (1 - cosine);
            const double p[3] = {v[0] * cosine + (a[1] * v[2] - a[2] * v[1]) * sine + a[0] * along,
                                 v[1] * cosine + (a[2] * v[0] - a[0] * v[2]) * sine + a[1] * along,
                                 v[2] * cosine + (a[0] * v[1] - a[1] * v[0]) * sine + a[2] * along};
            const double u[2] = {p[0] / p[2], p[1] / p[2]}, s = u[0] * u[0] + u[1] * u[1];
            const double scale = c[6] * (1 + (c[9] + c[10] * s) * s);
            values[3 * i] = w * (scale * u[0] + c[7] - features[2 * i]);
            values[3 * i + 1] = w * (scale * u[1] + c[8] - features[2 * i + 1]);
            values[3 * i + 2] = 1 - w * w;
        }
    }

    void derivative() {
        for (long i = 0; i < count; ++i)
            differentiate(cameras + 11 * i, points + 3 * i, weights[i], features + 2 * i, &derivatives[31 * i]);
    }

    static void differentiate(const double* c, const double* x, double w, const double* feature, double* J) {
        const double angle = std::sqrt(c[0] * c[0] + c[1] * c[1] + c[2] * c[2]), inverse = 1 / angle;
        const double a[3] = {c[0] * inverse, c[1] * inverse, c[2] * inverse};
        const double v[3] = {x[0] - c[3], x[1] - c[4], x[2] - c[5]};
        const double cosine = std::cos(angle), sine = std::sin(angle), rest = 1 - cosine;
        const double dot = a[0] * v[0] + a[1] * v[1] + a[2] * v[2];
        const double cross[3] = {a[1] * v[2] - a[2] * v[1], a[2] * v[0] - a[0] * v[2], a[0] * v[1] - a[1] * v[0]};
        double p[3], by_angle[3];
        for (int i = 0; i < 3; ++i) {
            p[i] = v[i] * cosine + cross[i] * sine + a[i] * dot * rest;
            by_angle[i] = -v[i] * sine + cross[i] * cosine + a[i] * dot * sine;
        }
        // Projection, and the derivative of the pixel by p: (2, 3).
        const double depth = 1 / p[2], u[2] = {p[0] * depth, p[1] * depth}, s = u[0] * u[0] + u[1] * u[1];
        const double factor = 1 + (c[9] + c[10] * s) * s, slope = 2 * c[6] * (c[9] + 2 * c[10] * s);
        double by_p[2][3];
        for (int row = 0; row < 2; ++row) {
            const double by_u[2] = {slope * u[row] * u[0] + (row == 0) * c[6] * factor,
                                    slope * u[row] * u[1] + (row == 1) * c[6] * factor};
            by_p[row][0] = w * by_u[0] * depth;
            by_p[row][1] = w * by_u[1] * depth;
            by_p[row][2] = -w * (by_u[0] * u[0] + by_u[1] * u[1]) * depth;
        }
        // The derivative of p by the rotation: along the axis the angle changes, across it the axis.
        double by_r[3][3], R[3][3];  // [input][coordinate of p], [coordinate of p][input]
        for (int j = 0; j < 3; ++j) {
            double turn[3];  // the derivative of the axis by c[j]
            for (int i = 0; i < 3; ++i) turn[i] = ((i == j) - a[i] * a[j]) * inverse;
            const double turned = turn[0] * v[0] + turn[1] * v[1] + turn[2] * v[2];
            const double crossed[3] = {turn[1] * v[2] - turn[2] * v[1], turn[2] * v[0] - turn[0] * v[2],
                                       turn[0] * v[1] - turn[1] * v[0]};
            for (int i = 0; i < 3; ++i) {
                by_r[j][i] = by_angle[i] * a[j] + crossed[i] * sine + (turn[i] * dot + a[i] * turned) * rest;
                R[i][j] = (i == j) * cosine + a[i] * a[j] * rest;
            }
        }
        R[0][1] -= a[2] * sine;
        R[1][0] += a[2] * sine;
        R[0][2] += a[1] * sine;
        R[2][0] -= a[1] * sine;
        R[1][2] -= a[0] * sine;
        R[2][1] += a[0] * sine;
        for (int row = 0; row < 2; ++row, J += 15) {
            const double* g = by_p[row];
            for (int j = 0; j < 3; ++j) {
                J[j] = g[0] * by_r[j][0] + g[1] * by_r[j][1] + g[2] * by_r[j][2];
                J[11 + j] = g[0] * R[0][j] + g[1] * R[1][j] + g[2] * R[2][j];
                J[3 + j] = -J[11 + j];
            }
            J[6] = w * factor * u[row];
            J[7] = row == 0 ? w : 0;
            J[8] = row == 1 ? w : 0;
            J[9] = w * c[6] * u[row] * s;
            J[10] = J[9] * s;
            J[14] = c[6] * factor * u[row] + c[7 + row] - feature[row];
        }
        J[0] = -2 * w;
    }
};

int main(int argc, char** argv) { return serve<Observations>(argc, argv); }
