//! Modes in which the software GPU is as strict as hardware, or another device.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use candle_core::cuda_backend::cudarc::cublas::{CudaBlas, Gemm, GemmConfig, sys};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError, PushKernelArg};
use candle_core::{DType, Device, Tensor};

use crate::child::{self, EndedProgram};
use crate::compare::{gpu, numbers};
use crate::kernels::{kernel, one_block};

/// Runs the work in a child with these variables: there this function calls it and returns `None`.
fn in_child(test: &str, variables: &[(&str, &str)], work: impl Fn()) -> Option<EndedProgram> {
    if child::is_child() {
        work();
        return None;
    }
    let ended = child::run(&format!("modes::{test}"), variables);
    assert!(ended.status.success(), "{}", ended.output);
    Some(ended)
}

/// What follows these words in their line of the child's output.
fn after<'a>(ended: &'a EndedProgram, words: &str) -> &'a str {
    let rest = ended.output.split_once(words).map(|(_, rest)| rest.lines().next().unwrap_or(""));
    rest.unwrap_or_else(|| panic!("no {words:?} in {}", ended.output))
}

#[test]
fn an_error_of_the_device_stays() {
    let work = || {
        let (wrong, stream) = kernel(
            "extern \"C\" __global__ void wrong(float *out) { out[threadIdx.x + 1] = 1; }",
            "wrong",
        );
        let mut out = stream.alloc_zeros::<f32>(64).unwrap();
        let mut builder = stream.launch_builder(&wrong);
        builder.arg(&mut out);
        // SAFETY: the software GPU finds the write past the end.
        unsafe { builder.launch(one_block(64)) }.unwrap();
        let code = |error: DriverError| error.0;
        println!("wait: {:?}", stream.synchronize().map_err(code));
        println!("allocation: {:?}", stream.alloc_zeros::<f32>(1).map(drop).map_err(code));
        println!("copy: {:?}", stream.clone_dtoh(&out).map(drop).map_err(code));
        println!("stream: {:?}", stream.context().new_stream().map(drop).map_err(code));
        println!("event: {:?}", stream.context().new_event(None).map(drop).map_err(code));
        println!("blas: {:?}", CudaBlas::new(stream).is_ok());
    };
    let variables = [("SOFTGPU_STICKY", "1"), ("SOFTGPU_CHECK", "1")];
    let Some(ended) = in_child("an_error_of_the_device_stays", &variables, work) else { return };
    let place = "in kernel wrong, block (0,0,0), thread (63,0,0)";
    assert!(ended.output.contains(place), "{}", ended.output);
    for call in ["wait", "allocation", "copy", "stream", "event"] {
        let result = after(&ended, &format!("{call}: "));
        assert_eq!(result, "Err(CUDA_ERROR_ILLEGAL_ADDRESS)", "{call}");
    }
}

#[test]
fn a_product_at_half_a_number_is_a_misaligned_address() {
    let work = || {
        let stream = CudaContext::new(0).expect("the software GPU").new_stream().unwrap();
        let blas = CudaBlas::new(stream.clone()).unwrap();
        let [a, b] = [1f32, 2.0].map(|x| stream.clone_htod(&[x; 4]).unwrap());
        let mut bytes = stream.alloc_zeros::<u8>(64).unwrap();
        let none = sys::cublasOperation_t::CUBLAS_OP_N;
        let config = GemmConfig {
            transa: none,
            transb: none,
            m: 2,
            n: 2,
            k: 2,
            alpha: 1.0,
            lda: 2,
            ldb: 2,
            beta: 0.0,
            ldc: 2,
        };
        for offset in [4, 2] {
            let mut bytes = bytes.slice_mut(offset..);
            // SAFETY: there are four numbers, and the software GPU finds where they begin.
            let mut c = unsafe { bytes.transmute_mut::<f32>(4) }.unwrap();
            // SAFETY: the matrices have four numbers each.
            let done = unsafe { blas.gemm(config, &a, &b, &mut c) };
            println!(
                "offset {offset}: {:?} {:?}",
                done.is_ok(),
                stream.synchronize().map_err(|e| e.0)
            );
        }
    };
    let name = "a_product_at_half_a_number_is_a_misaligned_address";
    let Some(ended) = in_child(name, &[("SOFTGPU_STRICT", "1")], work) else { return };
    assert_eq!(after(&ended, "offset 4: "), "true Ok(())");
    assert_eq!(after(&ended, "offset 2: "), "false Err(CUDA_ERROR_MISALIGNED_ADDRESS)");
    let what = "softgpu: gemm: the address of C is 2 modulo 16, and must be a multiple of 4";
    assert!(ended.output.contains(what), "{}", ended.output);
}

/// The largest distance from the exact results in units in the last place, and all bits.
fn distance(results: &Tensor, exact: impl Iterator<Item = f64>) -> (f64, u64) {
    let results = results.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let ulp = |y: f32| {
        f64::from(f32::from_bits(y.to_bits() & 0x7fff_ffff).next_up()) - f64::from(y.abs())
    };
    let distances = results.iter().zip(exact).map(|(y, x)| (f64::from(*y) - x).abs() / ulp(*y));
    let digest =
        |digest: u64, y: &f32| (digest ^ u64::from(y.to_bits())).wrapping_mul(0x0100_0000_01b3);
    (distances.fold(0.0, f64::max), results.iter().fold(0, digest))
}

#[test]
fn noise_is_within_two_units_and_the_same_in_every_run() {
    let work = || {
        let gpu = gpu();
        let xs = |device: &Device| numbers(&[1000], DType::F32, device).unwrap();
        let exact = xs(&Device::Cpu).to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap();
        let (exp, bits) = distance(&xs(&gpu).exp().unwrap(), exact.iter().map(|x| x.exp()));
        println!("exp: {exp:.3}\nexp bits: {bits:x}");
        let [a, b] = [[4, 200], [200, 5]].map(|shape| numbers(&shape, DType::F32, &gpu).unwrap());
        let (_, bits) = distance(&a.matmul(&b).unwrap(), std::iter::empty());
        println!("product bits: {bits:x}");
    };
    let name = "noise_is_within_two_units_and_the_same_in_every_run";
    let [seed, other] = ["1", "2"].map(|seed| [("SOFTGPU_NOISE", "1"), ("SOFTGPU_SEED", seed)]);
    let none = [("SOFTGPU_NOISE", "0"), ("SOFTGPU_SEED", "1")];
    let mut runs = Vec::new();
    for variables in [none, seed, seed, other] {
        let Some(ended) = in_child(name, &variables, work) else { return };
        runs.push(ended);
    }
    let figures = |run: &EndedProgram| after(run, "exp: ").parse::<f64>().unwrap();
    assert!(figures(&runs[0]) < 1.0, "{}", runs[0].output);
    for noisy in &runs[1..] {
        // The exact number is up to half a unit from the host's.
        assert!((1.5..2.6).contains(&figures(noisy)), "{}", noisy.output);
    }
    for what in ["exp bits: ", "product bits: "] {
        let bits = runs.iter().map(|run| after(run, what)).collect::<Vec<_>>();
        assert_eq!(bits[1], bits[2]);
        assert_eq!(bits.iter().collect::<BTreeSet<_>>().len(), 3, "{what}{bits:?}");
    }
}

#[test]
fn products_can_be_rounded_as_for_tf32() {
    let work = || {
        let ones = Tensor::from_vec(vec![1.0 + 2f32.powi(-12); 16], (4, 4), &gpu()).unwrap();
        println!("product: {:?}", ones.matmul(&ones).unwrap().get(0).unwrap().to_vec1::<f32>());
    };
    let name = "products_can_be_rounded_as_for_tf32";
    let off = [("SOFTGPU_TF32", "0")];
    let Some(plain) = in_child(name, &off, work) else { return };
    assert!(after(&plain, "product: ").starts_with("Ok([4.00"), "{}", plain.output);
    let Some(rounded) = in_child(name, &[("SOFTGPU_TF32", "1")], work) else { return };
    assert_eq!(after(&rounded, "product: "), "Ok([4.0, 4.0, 4.0, 4.0])");
}

/// Two processes, whose kernels hold a file that no other kernel may hold. They start together.
#[test]
fn kernels_of_two_processes_take_turns() {
    let folder = std::env::temp_dir().join(format!("softgpu-turns-{}", std::process::id()));
    let folder = std::env::var_os("SOFTGPU_TEST_FOLDER").map_or(folder, PathBuf::from);
    let work = || {
        let source = r#"
extern "C" __global__ void hold(unsigned *overlaps) {
    FILE *file = fopen("PATH", "wx");
    if (!file) {
        ++*overlaps;
        return;
    }
    for (volatile int i = 0; i < 300000; i++) {}
    fclose(file);
    remove("PATH");
}"#;
        let path = folder.join("held").display().to_string();
        let (hold, stream) = kernel(&source.replace("PATH", &path), "hold");
        let mut overlaps = stream.alloc_zeros::<u32>(1).unwrap();
        fs::write(folder.join(std::process::id().to_string()), "").unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while fs::read_dir(&folder).unwrap().count() < 2 {
            assert!(Instant::now() < end, "the other process did not start");
            thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..100 {
            let mut builder = stream.launch_builder(&hold);
            builder.arg(&mut overlaps);
            // SAFETY: the argument is that of the kernel.
            unsafe { builder.launch(one_block(1)) }.unwrap();
            stream.synchronize().unwrap();
        }
        println!("overlaps: {:?}", stream.clone_dtoh(&overlaps).unwrap());
    };
    if child::is_child() {
        return work();
    }
    fs::create_dir(&folder).unwrap();
    let name = "kernels_of_two_processes_take_turns";
    let variables = [
        ("SOFTGPU_SHARED", "1"),
        ("SOFTGPU_SLICE_US", "500"),
        ("SOFTGPU_TRACE", "1"),
        ("SOFTGPU_TEST_FOLDER", folder.to_str().unwrap()),
    ];
    let turns: usize = thread::scope(|scope| {
        let one = || in_child(name, &variables, work).expect("the parent");
        let children = [scope.spawn(one), scope.spawn(one)].map(|child| child.join().unwrap());
        let turns = children.each_ref().map(|ended| {
            assert_eq!(after(ended, "overlaps: "), "[0]");
            ended.output.matches("softgpu: the device changes to this process").count()
        });
        turns.iter().sum()
    });
    fs::remove_dir_all(&folder).unwrap();
    assert!(turns > 2, "{turns} turns");
}

#[test]
fn calls_are_counted_by_kind() {
    let path = std::env::temp_dir().join(format!("softgpu-counts-{}", std::process::id()));
    let work = || {
        let (own, stream) = kernel("extern \"C\" __global__ void own(float *x) { *x = 1; }", "own");
        let mut x = stream.alloc_zeros::<f32>(4).unwrap();
        for _ in 0..3 {
            let mut builder = stream.launch_builder(&own);
            builder.arg(&mut x);
            // SAFETY: the argument is that of the kernel.
            unsafe { builder.launch(one_block(1)) }.unwrap();
        }
        drop(x);
        stream.synchronize().unwrap();
    };
    let path_text = path.display().to_string();
    let variables = [("SOFTGPU_COUNTS", path_text.as_str())];
    if in_child("calls_are_counted_by_kind", &variables, work).is_none() {
        return;
    }
    let counts = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let counts: Vec<Vec<&str>> = counts.lines().map(|l| l.split_whitespace().collect()).collect();
    for (kind, expected) in [
        ("kernels", "3"),
        ("kernels_of_candle", "0"),
        ("allocations", "1"),
        ("frees", "1"),
        ("fills", "1"),
        // cudarc waits before it makes its first stream.
        ("waits", "2"),
    ] {
        let count = counts.iter().find(|line| line[0] == kind).unwrap()[1];
        assert_eq!(count, expected, "{kind} of {counts:?}");
    }
}
