//! Which matrix product: the crates `gemm` and `matrixmultiply` at the shapes of the MNIST CNN
//! (batch 64) and of ResNet-18's blocks, in f32. docs/log/2026-11-21-products-and-vectors.md has
//! what was measured.
//!
//! ```text
//! RAYON_NUM_THREADS=1 cargo bench -p candelabrum-nn --bench matmul
//! ```

#![expect(clippy::unwrap_used, reason = "a bench has nobody to hand an error to")]

use candelabrum_testkit::uniform;
use candle_core::DType;
use divan::Bencher;
use divan::counter::ItemsCount;

fn main() {
    divan::main();
}

/// `out (m x n) = a (m x k) b (k x n)`; a transposed operand lies column by column.
#[derive(Clone, Copy, Debug)]
struct Product {
    name: &'static str,
    m: usize,
    n: usize,
    k: usize,
    a_transposed: bool,
    b_transposed: bool,
}

const fn product(name: &'static str, [m, n, k]: [usize; 3], [a, b]: [bool; 2]) -> Product {
    Product { name, m, n, k, a_transposed: a, b_transposed: b }
}

const PRODUCTS: [Product; 11] = [
    product("conv1 forward", [20, 576, 25], [false, false]),
    product("conv1 weight", [20, 25, 576], [false, true]),
    product("conv2 forward", [50, 64, 500], [false, false]),
    product("conv2 weight", [50, 500, 64], [false, true]),
    product("conv2 input", [500, 64, 50], [true, false]),
    product("linear1 forward", [64, 500, 800], [false, true]),
    product("linear1 weight", [500, 800, 64], [true, false]),
    product("linear1 input", [64, 800, 500], [false, false]),
    product("resnet layer1 forward", [64, 64, 576], [false, false]),
    product("resnet layer4 forward", [512, 64, 4608], [false, false]),
    product("resnet layer4 weight", [512, 4608, 64], [false, true]),
];

impl std::fmt::Display for Product {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}x{}x{}", self.name, self.m, self.n, self.k)
    }
}

/// Operands, and the strides of `a` and `b` as (row, column).
struct Operands {
    a: Vec<f32>,
    b: Vec<f32>,
    out: Vec<f32>,
    a_strides: (isize, isize),
    b_strides: (isize, isize),
}

impl Operands {
    fn new(product: Product) -> Self {
        let Product { m, n, k, a_transposed, b_transposed, .. } = product;
        let values = |len: usize, seed: u64| {
            uniform(len, seed, -1.0, 1.0, DType::F32).unwrap().to_vec1().unwrap()
        };
        let strides = |rows: usize, columns: usize, transposed: bool| match transposed {
            false => (columns as isize, 1),
            true => (1, rows as isize),
        };
        Self {
            a: values(m * k, 1),
            b: values(k * n, 2),
            out: vec![0.0; m * n],
            a_strides: strides(m, k, a_transposed),
            b_strides: strides(k, n, b_transposed),
        }
    }
}

fn flops(product: Product) -> ItemsCount {
    ItemsCount::new(2 * product.m * product.n * product.k)
}

#[divan::bench(args = PRODUCTS)]
fn by_gemm(bencher: Bencher<'_, '_>, product: Product) {
    let Product { m, n, k, .. } = product;
    let Operands { a, b, mut out, a_strides, b_strides } = Operands::new(product);
    bencher.counter(flops(product)).bench_local(|| {
        // SAFETY: `Operands` has as many elements as the shapes and strides say.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                out.as_mut_ptr(),
                1,
                n as isize,
                false,
                a.as_ptr(),
                a_strides.1,
                a_strides.0,
                b.as_ptr(),
                b_strides.1,
                b_strides.0,
                1.0,
                1.0,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    });
}

#[divan::bench(args = PRODUCTS)]
fn by_matrixmultiply(bencher: Bencher<'_, '_>, product: Product) {
    let Product { m, n, k, .. } = product;
    let Operands { a, b, mut out, a_strides, b_strides } = Operands::new(product);
    bencher.counter(flops(product)).bench_local(|| {
        // SAFETY: `Operands` has as many elements as the shapes and strides say.
        unsafe {
            matrixmultiply::sgemm(
                m,
                k,
                n,
                1.0,
                a.as_ptr(),
                a_strides.0,
                a_strides.1,
                b.as_ptr(),
                b_strides.0,
                b_strides.1,
                0.0,
                out.as_mut_ptr(),
                n as isize,
                1,
            );
        }
    });
}
