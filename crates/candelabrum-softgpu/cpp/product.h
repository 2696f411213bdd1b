// Matrix products for cuBLAS and cuDNN: on tiles of the result that stay in registers.
#pragma once
#include "noise.h"
#include <cstring>
#include <vector>

// c (m x n) = a (m x k) b (k x n), or c += a b with `add`. Rows lie one after the other.
template <class A> __attribute__((optimize("fp-contract=fast"))) void
product(size_t m, size_t n, size_t k, const A *a, const A *b, A *c, bool add) {
    // 12 vectors of sums, which fit the 16 registers together with what is added to them.
    constexpr size_t ROWS = 6, LANES = 32 / sizeof(A), WIDTH = 2 * LANES;
    typedef A Vector __attribute__((vector_size(32)));
    // The first term of each sum. Those before it come last.
    const size_t first = noise() && k ? noise_of(m ^ n << 20 ^ k << 40) % k : 0;
    // Columns of b side by side, so that a tile reads them one after the other.
    std::vector<A> panel(k * WIDTH);
    for (size_t left = 0; left < n; left += WIDTH) {
        size_t width = n - left < WIDTH ? n - left : WIDTH;
        for (size_t l = 0; l < k; l++)
            memcpy(&panel[l * WIDTH], b + l * n + left, width * sizeof(A));
        for (size_t top = 0; top < m; top += ROWS) {
            Vector sums[ROWS][2] = {};
            const A *rows[ROWS]; // rows below the matrix repeat its last one
            for (size_t r = 0; r < ROWS; r++) rows[r] = a + (top + r < m ? top + r : m - 1) * k;
            for (size_t i = 0; i < k; i++) {
                const size_t l = i + first < k ? i + first : i + first - k;
                Vector one, two;
                memcpy(&one, &panel[l * WIDTH], sizeof one);
                memcpy(&two, &panel[l * WIDTH + LANES], sizeof two);
#pragma GCC unroll 6
                for (size_t r = 0; r < ROWS; r++) {
                    sums[r][0] += rows[r][l] * one;
                    sums[r][1] += rows[r][l] * two;
                }
            }
            for (size_t r = 0; r < ROWS && top + r < m; r++) {
                A *to = c + (top + r) * n + left, row[WIDTH];
                memcpy(row, sums[r], sizeof row);
                for (size_t j = 0; j < width; j++) to[j] = add ? to[j] + row[j] : row[j];
            }
        }
    }
}
