// Residuals of hand tracking and their Jacobian, written by hand. See examples/hand_tracking.py.
//
// A row of the result has 28 numbers: 26 by the pose and 2 by the spot. An angle of a finger moves only the bones
// behind its joint, and a vertex only has a few bones. Vertices that no measured point needs are left out.
#include <algorithm>
#include <array>
#include <cmath>

#include "driver.hpp"

using Affine = std::array<double, 12>;  // (3, 4); the last row of the 4 x 4 matrix is 0 0 0 1
constexpr int BONES = 22, ANGLES = 20, POSE = 26, COLUMNS = POSE + 2;

// Return a b. The last row of b is 0 0 0 `bottom`: 1 for a transform, 0 for the derivative of one.
Affine multiply(const Affine& a, const Affine& b, double bottom = 1) {
    Affine c{};
    for (int i = 0; i < 3; ++i) {
        for (int k = 0; k < 3; ++k)
            for (int j = 0; j < 4; ++j) c[4 * i + j] += a[4 * i + k] * b[4 * k + j];
        c[4 * i + 3] += a[4 * i + 3] * bottom;
    }
    return c;
}

struct Hand {
    const long vertices, measured;
    const double *theta, *u, *relative, *inverse, *weights, *base, *triangles, *y;
    Values values, derivatives;
    std::vector<char> needed;
    Values moved;                              // positions after rotation and translation: (vertices, 3)
    Values by_pose;                            // their derivatives by the pose: (vertices, 3, 26)
    std::array<Affine, BONES> transforms;      // of the bones
    std::array<Affine, 3 * ANGLES> by_angles;  // (angle, bone of its finger after the first): derivatives
    double R[3][3], by_rotation[3][3][3];      // rotation, and its derivatives by the pose

    explicit Hand(Problem& problem)
        : vertices(problem.sizes[0]), measured(problem.sizes[1]), theta(problem.take(POSE)),
          u(problem.take(2 * measured)), relative(problem.take(16 * BONES)), inverse(problem.take(16 * BONES)),
          weights(problem.take(BONES * vertices)), base(problem.take(4 * vertices)),
          triangles(problem.take(3 * measured)), y(problem.take(3 * measured)), values(3 * measured), derivatives(3 * measured * COLUMNS),
          needed(vertices), moved(3 * vertices), by_pose(3 * POSE * vertices) {}

    static Affine read(const double* matrix) {
        Affine a;
        std::copy_n(matrix, 12, a.begin());
        return a;
    }

    // Set the rotation of a joint about x by `x`, then about z by `z`, and its derivatives by x and by z.
    static void set_joint(double x, double z, Affine& joint, Affine& by_x, Affine& by_z) {
        const double cx = std::cos(x), sx = std::sin(x), cz = std::cos(z), sz = std::sin(z);
        joint = {cz, -sz * cx, sz * sx, 0, sz, cz * cx, -cz * sx, 0, 0, sx, cx, 0};
        by_x = {0, sz * sx, sz * cx, 0, 0, -cz * sx, -cz * cx, 0, 0, cx, -sx, 0};
        by_z = {-sz, -cz * cx, cz * sx, 0, cz, -sz * cx, sz * sx, 0, 0, 0, 0, 0};
    }

    void pose_bones(bool with_derivatives) {
        const Affine wrist = read(relative);
        transforms[0] = multiply(wrist, read(inverse));
        transforms[BONES - 1] =
            multiply(multiply(wrist, read(relative + 16 * (BONES - 1))), read(inverse + 16 * (BONES - 1)));
        for (int finger = 0; finger < 5; ++finger) {
            const int first = 1 + 4 * finger;
            const double* angles = theta + 6 + 4 * finger;
            Affine absolute = multiply(wrist, read(relative + 16 * first));
            transforms[first] = multiply(absolute, read(inverse + 16 * first));
            std::array<Affine, 4> by{};  // the derivatives of `absolute` by the angles of the finger
            for (int bone = 0; bone < 3; ++bone) {
                const int number = first + 1 + bone, last_angle = bone + 1;
                Affine joint, by_x, by_z;
                set_joint(angles[bone == 0 ? 0 : last_angle], bone == 0 ? angles[1] : 0.0, joint, by_x, by_z);
                const Affine before = multiply(absolute, read(relative + 16 * number));
                const Affine at_rest = read(inverse + 16 * number);
                if (with_derivatives) {
                    const Affine step = multiply(read(relative + 16 * number), joint);
                    for (int angle = 0; angle < last_angle; ++angle) by[angle] = multiply(by[angle], step);
                    by[bone == 0 ? 0 : last_angle] = multiply(before, by_x, 0);
                    if (bone == 0) by[1] = multiply(before, by_z, 0);
                    for (int angle = 0; angle <= last_angle; ++angle)
                        by_angles[(4 * finger + angle) * 3 + bone] = multiply(by[angle], at_rest);
                }
                absolute = multiply(before, joint);
                transforms[number] = multiply(absolute, at_rest);
            }
        }
    }

    void set_rotation() {
        const double angle = std::sqrt(theta[0] * theta[0] + theta[1] * theta[1] + theta[2] * theta[2]);
        const double a[3] = {theta[0] / angle, theta[1] / angle, theta[2] / angle};
        const double cosine = std::cos(angle), sine = std::sin(angle), rest = 1 - cosine;
        const double K[3][3] = {{0, -a[2], a[1]}, {a[2], 0, -a[0]}, {-a[1], a[0], 0}};
        for (int i = 0; i < 3; ++i)
            for (int j = 0; j < 3; ++j) R[i][j] = (i == j) * cosine + sine * K[i][j] + rest * a[i] * a[j];
        for (int p = 0; p < 3; ++p) {
            double t[3];  // the derivative of the axis
            for (int i = 0; i < 3; ++i) t[i] = ((i == p) - a[i] * a[p]) / angle;
            const double T[3][3] = {{0, -t[2], t[1]}, {t[2], 0, -t[0]}, {-t[1], t[0], 0}};
            for (int i = 0; i < 3; ++i)
                for (int j = 0; j < 3; ++j)
                    by_rotation[p][i][j] = a[p] * (cosine * K[i][j] + sine * (a[i] * a[j] - (i == j))) +
                                           sine * T[i][j] + rest * (t[i] * a[j] + a[i] * t[j]);
        }
    }

    void move_vertex(long vertex, bool with_derivatives) {
        const double* x = base + 4 * vertex;
        double skinned[3] = {}, by_angle[ANGLES][3] = {};
        for (int bone = 0; bone < BONES; ++bone) {
            const double weight = weights[vertex * BONES + bone];
            if (weight == 0) continue;
            for (int i = 0; i < 3; ++i)
                for (int j = 0; j < 4; ++j) skinned[i] += weight * transforms[bone][4 * i + j] * x[j];
            const int finger = (bone - 1) / 4, joint = (bone - 1) % 4 - 1;
            if (!with_derivatives || bone == 0 || bone == BONES - 1 || joint < 0) continue;
            for (int angle = 4 * finger; angle <= 4 * finger + joint + 1; ++angle) {
                const Affine& by = by_angles[angle * 3 + joint];
                for (int i = 0; i < 3; ++i)
                    for (int j = 0; j < 4; ++j) by_angle[angle][i] += weight * by[4 * i + j] * x[j];
            }
        }
        double *position = &moved[3 * vertex], *J = &by_pose[3 * POSE * vertex];
        for (int i = 0; i < 3; ++i, J += POSE) {
            position[i] = theta[3 + i];
            for (int j = 0; j < 3; ++j) position[i] += R[i][j] * skinned[j];
            if (!with_derivatives) continue;
            for (int p = 0; p < 3; ++p) {
                J[p] = 0;
                for (int j = 0; j < 3; ++j) J[p] += by_rotation[p][i][j] * skinned[j];
                J[3 + p] = i == p;
            }
            for (int angle = 0; angle < ANGLES; ++angle)
                J[6 + angle] = R[i][0] * by_angle[angle][0] + R[i][1] * by_angle[angle][1] + R[i][2] * by_angle[angle][2];
        }
    }

    void move_vertices(bool with_derivatives) {
        pose_bones(with_derivatives);
        set_rotation();
        std::fill(needed.begin(), needed.end(), 0);
        for (long i = 0; i < 3 * measured; ++i) needed[long(triangles[i])] = 1;
        for (long vertex = 0; vertex < vertices; ++vertex)
            if (needed[vertex]) move_vertex(vertex, with_derivatives);
    }

    void value() {
        move_vertices(false);
        for (long q = 0; q < measured; ++q) {
            const double share[3] = {u[2 * q], u[2 * q + 1], 1 - u[2 * q] - u[2 * q + 1]};
            for (int i = 0; i < 3; ++i) {
                values[3 * q + i] = y[3 * q + i];
                for (int corner = 0; corner < 3; ++corner)
                    values[3 * q + i] -= share[corner] * moved[3 * long(triangles[3 * q + corner]) + i];
            }
        }
    }

    void derivative() {
        move_vertices(true);
        for (long q = 0; q < measured; ++q) {
            const double share[3] = {u[2 * q], u[2 * q + 1], 1 - u[2 * q] - u[2 * q + 1]};
            const long v[3] = {long(triangles[3 * q]), long(triangles[3 * q + 1]), long(triangles[3 * q + 2])};
            for (int i = 0; i < 3; ++i) {
                double* J = &derivatives[(3 * q + i) * COLUMNS];
                const double *a = &by_pose[(3 * v[0] + i) * POSE], *b = &by_pose[(3 * v[1] + i) * POSE];
                const double* c = &by_pose[(3 * v[2] + i) * POSE];
                for (int p = 0; p < POSE; ++p) J[p] = -(share[0] * a[p] + share[1] * b[p] + share[2] * c[p]);
                J[POSE] = moved[3 * v[2] + i] - moved[3 * v[0] + i];
                J[POSE + 1] = moved[3 * v[2] + i] - moved[3 * v[1] + i];
            }
        }
    }
};

int main(int argc, char** argv) { return serve<Hand>(argc, argv); }
