use crate::device::gpu;
use candelabrum::candle::Var;
use candelabrum::prelude::*;
#[test]
fn debug_nan() {
    for d in [Device::Cpu, gpu().unwrap()] {
        let w = Var::zeros(3, DType::F32, &d).unwrap();
        let z = (w.as_tensor() * 0.0).unwrap();
        let l = z.sqrt().unwrap().sum_all().unwrap();
        let g = l.backward().unwrap();
        eprintln!("{:?} {:?}", d.is_cpu(), g.get(&w).unwrap().to_vec1::<f32>().unwrap());
        let z = (w.as_tensor() * 1.0).unwrap();
        let l = z.sqrt().unwrap().sum_all().unwrap();
        let g = l.backward().unwrap();
        eprintln!("{:?} {:?}", d.is_cpu(), g.get(&w).unwrap().to_vec1::<f32>().unwrap());
    }
}
