// Driver of the hand-written gradients: reads a problem from a binary file and answers requests from standard input.
//
//   file: int64 number of sizes, int64 sizes, then float64 values to the end of the file
//   "value N", "derivative N": run N times, print the seconds of one call
//   "write PATH": write the results of the last calls, float64 values of the function, then of its derivative
#pragma once
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

using Values = std::vector<double>;

struct Problem {
    std::vector<int64_t> sizes;
    Values values;
    size_t used = 0;

    explicit Problem(const std::string& path) {
        std::ifstream file(path, std::ios::binary);
        std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        if (bytes.size() < sizeof(int64_t)) throw std::runtime_error("cannot read " + path);
        const int64_t* header = reinterpret_cast<const int64_t*>(bytes.data());
        sizes.assign(header + 1, header + 1 + header[0]);
        const double* first = reinterpret_cast<const double*>(header + 1 + header[0]);
        values.assign(first, reinterpret_cast<const double*>(bytes.data() + bytes.size()));
    }

    // Return the next `count` values of the file.
    const double* take(size_t count) {
        if (used + count > values.size()) throw std::runtime_error("the file is too short");
        used += count;
        return values.data() + used - count;
    }
};

// Serve a class with a constructor from Problem&, the methods value() and derivative(), and the results
// `values` and `derivatives`.
template <class Function>
int serve(int argc, char** argv) {
    if (argc != 2) throw std::runtime_error("usage: PROGRAM FILE");
    Problem problem(argv[1]);
    Function function(problem);
    std::string request;
    while (std::cin >> request) {
        if (request == "write") {
            std::string path;
            std::cin >> path;
            std::ofstream file(path, std::ios::binary);
            for (const Values* results : {&function.values, &function.derivatives})
                file.write(reinterpret_cast<const char*>(results->data()), results->size() * sizeof(double));
            file.close();
            std::cout << "written" << std::endl;
            continue;
        }
        long count;
        std::cin >> count;
        const auto start = std::chrono::steady_clock::now();
        for (long run = 0; run < count; ++run)
            request == "value" ? function.value() : function.derivative();
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
        std::cout.precision(17);
        std::cout << elapsed.count() / count << std::endl;
    }
    return 0;
}
