//! The regression on a table in docs/first-steps.md and docs/training.md learns real prices.
//!
//! A model begins near 0 and moves in small steps, so without standardized targets of 100,000 it ends far
//! worse than the mean of the prices.

use candelabrum::prelude::*;

/// price = 3000 area + 10000 rooms, and something that the inputs do not tell.
fn houses() -> String {
    let row = |i: u32| {
        let (area, rooms) = (40 + i * 37 % 160, 1 + i * 7 % 6);
        format!("{area},{rooms},{}\n", 3000 * area + 10_000 * rooms + i * 911 % 9000)
    };
    "area,rooms,price\n".to_owned() + &(0..500).map(row).collect::<String>()
}

struct Net {
    hidden: Linear,
    out: Linear,
}

impl Model for Net {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        self.out.forward(&self.hidden.forward(xs)?)
    }

    fn loss(&self, output: &Tensor, targets: &Tensor) -> candelabrum::candle::Result<Tensor> {
        (output - targets)?.sqr()?.mean_all()
    }
}

#[test]
fn the_program_on_a_table_is_better_than_the_mean_of_its_targets() {
    let table = CsvTable::read(houses().as_bytes(), "houses.csv", &CsvConfig::numbers(["price"]));
    let table = table.unwrap();
    let (data, _) = table.split(0.2, 0).unwrap().standardized().unwrap();
    let (data, units) = data.standardized_targets().unwrap();
    let params = Params::new(0);
    let root = params.root();
    let hidden = Linear::new(&root.pp("hidden"), 32).activation(Activation::Tanh);
    let model = Net { hidden, out: Linear::new(&root.pp("out"), 1) };
    let opt = DistOpt::new(Adam::new(0.01), &params, &World::single()).unwrap();
    let mut trainer = Trainer::new(model, opt).with_score(RegressionErrors);
    trainer.compile((1, table.inputs().len())).unwrap();
    // docs/first-steps.md: 50 epochs with the usual batches of 64.
    let config = FitConfig { epochs: 50, batch_size: 64, ..FitConfig::default() };
    let reports = trainer.fit(&data.train, &data.test, &config, &mut std::io::sink()).unwrap();
    let error = reports.last().unwrap().measures["evaluation/mse"].sqrt() * units.std[0];

    let prices = units.undo(&data.test.tensors()[1]).unwrap();
    let prices: Vec<f32> = prices.flatten_all().unwrap().to_vec1().unwrap();
    let squares: f64 = prices.iter().map(|&price| (f64::from(price) - units.mean[0]).powi(2)).sum();
    let of_the_mean = (squares / prices.len() as f64).sqrt();
    println!("the root of the mean squared error is {error:.0}, that of the mean {of_the_mean:.0}");
    assert!(of_the_mean > 1e5 && error < 0.1 * of_the_mean, "{error} {of_the_mean}");
}

#[test]
fn all_programs_on_a_table_of_numbers_standardize_its_targets() {
    let mut programs = 0;
    for page in ["docs/first-steps.md", "docs/training.md", "datasets/README.md"] {
        let path = format!("{}/{page}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        // Every second piece is a block of code.
        for block in text.split("```").skip(1).step_by(2) {
            if block.contains("CsvConfig::numbers") && block.contains("trainer.fit") {
                assert!(block.contains(".standardized_targets()"), "{page}: {block}");
                programs += 1;
            }
        }
    }
    assert_eq!(programs, 2);
}
