//! The example `convolve`: its pictures are those of plain loops, on the CPU and on a GPU.

use std::fs;
use std::path::Path;

use png::{ColorType, Decoder, Encoder};

use crate::learning::last_number;
use crate::precision::has_gpu;
use crate::run::{example, output_of};

/// A picture of 8 bits for each number.
#[derive(Clone)]
struct Picture {
    width: usize,
    height: usize,
    color: ColorType,
    bytes: Vec<u8>,
}

impl Picture {
    /// Any numbers.
    fn some(width: usize, height: usize, color: ColorType) -> Self {
        let count = (width * height * color.samples()) as u32;
        let bytes = (0..count).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        Self { width, height, color, bytes }
    }

    fn read(path: &Path) -> Self {
        let file = fs::File::open(path).unwrap();
        let mut reader = Decoder::new(std::io::BufReader::new(file)).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        let (width, height) = (info.width as usize, info.height as usize);
        Self { width, height, color: info.color_type, bytes }
    }

    fn write(&self, path: &Path) {
        let file = fs::File::create(path).unwrap();
        let mut encoder = Encoder::new(file, self.width as u32, self.height as u32);
        encoder.set_color(self.color);
        encoder.write_header().unwrap().write_image_data(&self.bytes).unwrap();
    }

    /// The numbers of a pixel without alpha.
    fn colors(&self) -> usize {
        if self.color.samples() < 3 { 1 } else { 3 }
    }

    /// The result of these filters with zeros around the picture.
    fn filtered(&self, filters: &[&[f64]]) -> Self {
        let (samples, side) = (self.color.samples(), filters[0].len().isqrt());
        let mut result = self.clone();
        for (at, byte) in result.bytes.iter_mut().enumerate() {
            let (pixel, color) = (at / samples, at % samples);
            if color >= self.colors() {
                continue;
            }
            let sum = |filter: &&[f64]| -> f64 {
                let term = |(i, weight): (usize, &f64)| {
                    let y = (pixel / self.width + i / side).checked_sub(side / 2);
                    let x = (pixel % self.width + i % side).checked_sub(side / 2);
                    let y = y.filter(|y| *y < self.height)?;
                    let x = x.filter(|x| *x < self.width)?;
                    let byte = self.bytes[(y * self.width + x) * samples + color];
                    Some(weight * f64::from(byte))
                };
                filter.iter().enumerate().filter_map(term).sum()
            };
            let squares: f64 = filters.iter().map(|filter| sum(filter).powi(2)).sum();
            // One filter keeps its sign.
            let value = if filters.len() == 1 { sum(&filters[0]) } else { squares.sqrt() };
            *byte = value.round().clamp(0.0, 255.0) as u8;
        }
        result
    }

    /// Asserts that the pictures differ by rounding only.
    fn assert_close(&self, other: &Self, what: &str) {
        let size = |picture: &Self| (picture.width, picture.height, picture.color);
        assert_eq!(size(self), size(other), "{what}");
        let mut pairs = self.bytes.iter().zip(&other.bytes);
        assert!(pairs.all(|(a, b)| a.abs_diff(*b) <= 1), "{what}");
        if let Some(alpha) = (self.colors()..self.color.samples()).next() {
            let alphas = |picture: &Self| -> Vec<u8> {
                picture.bytes.iter().skip(alpha).step_by(self.color.samples()).copied().collect()
            };
            assert_eq!(alphas(self), alphas(other), "{what}");
        }
    }
}

/// What `convolve` makes of a picture, and what it prints.
fn convolved(picture: &Picture, options: &[&str], variables: &[(&str, &str)]) -> (Picture, String) {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("input.png"), dir.path().join("output.png"));
    picture.write(&input);
    let program = example("convolve").arg("--input").arg(&input).arg("--output").arg(&output);
    let program = program.args(options).args(["--rounds", "1"]);
    let ended = program.envs(variables.iter().copied()).run().success();
    (Picture::read(&output), ended.out)
}

/// Pictures smaller and larger than a tile and a filter, of every kind of colours.
fn pictures() -> [Picture; 5] {
    [
        Picture::some(1, 1, ColorType::Grayscale),
        Picture::some(7, 5, ColorType::Rgba),
        Picture::some(33, 40, ColorType::GrayscaleAlpha),
        Picture::some(70, 3, ColorType::Rgb),
        Picture::some(64, 96, ColorType::Grayscale),
    ]
}

const FILTERS: [&[&str]; 5] = [
    &["--filter", "gaussian", "--radius", "8"],
    &["--filter", "gaussian"],
    &["--filter", "box", "--radius", "2"],
    &["--filter", "sharpen"],
    &["--filter", "sobel"],
];

#[test]
fn convolve_filters_pictures_with_zeros_around_them() {
    let sharpen: &[f64] = &[0.0, -1.0, 0.0, -1.0, 5.0, -1.0, 0.0, -1.0, 0.0];
    let across: &[f64] = &[-1.0, 0.0, 1.0, -2.0, 0.0, 2.0, -1.0, 0.0, 1.0];
    let down: &[f64] = &[-1.0, -2.0, -1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 1.0];
    let mean: &[f64] = &[1.0 / 25.0; 25];
    let curve = |radius: i32| -> Vec<f64> {
        let bell = |at: i32| (-2.0 * (f64::from(at) / f64::from(radius)).powi(2)).exp();
        let sum: f64 = (-radius..=radius).map(bell).sum();
        let row = |y| (-radius..=radius).map(move |x| bell(x) * bell(y) / (sum * sum));
        (-radius..=radius).flat_map(row).collect()
    };
    let (eight, three) = (curve(8), curve(3));
    let filters: [&[&[f64]]; 5] = [&[&eight], &[&three], &[mean], &[sharpen], &[across, down]];
    for picture in pictures() {
        for (options, filters) in FILTERS.iter().zip(filters) {
            let (result, text) =
                convolved(&picture, &[*options, &["--device", "cpu"]].concat(), &[]);
            result.assert_close(&picture.filtered(filters), &format!("{options:?}"));
            assert!(text.contains("direct loop") && text.contains("ops::conv2d"), "{text}");
        }
    }
}

#[test]
fn convolve_has_a_picture_of_its_own() {
    let text = output_of("convolve", "--device cpu --rounds 2");
    assert!(text.starts_with("512 x 384 pixels (Rgb) on cpu, Gaussian filter\nradius 3"), "{text}");
    assert!(last_number(&text, "ops::conv2d") > 0.0, "{text}");
}

#[test]
fn convolve_says_what_is_wrong_with_a_file_or_an_option() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (whole, cut, text) = (path("whole.png"), path("cut.png"), path("text.png"));
    Picture::some(40, 40, ColorType::Rgb).write(Path::new(&whole));
    fs::write(&cut, &fs::read(&whole).unwrap()[..300]).unwrap();
    fs::write(&text, "no picture").unwrap();
    let nowhere = path("no/where.png");
    let cases: [(&[&str], &[&str], i32); 7] = [
        (&["--input", &cut], &["read the picture", &cut, "unexpected end of file"], 1),
        (&["--input", &text], &["read the picture", &text, "Invalid PNG signature"], 1),
        (&["--input", &nowhere], &["read the picture", &nowhere, "No such file"], 1),
        (&["--output", &nowhere], &["write the picture", &nowhere, "No such file"], 1),
        (&["--radius", "0"], &["--radius is 0: it must be from 1 to 8"], 2),
        (&["--filter", "box", "--radius", "9"], &["--radius is 9: it must be from 1 to 8"], 2),
        (&["--filter", "sobel", "--radius", "2"], &["--radius is 2: it must be 1"], 2),
    ];
    for (options, parts, code) in cases {
        let ended = example("convolve").args(options).args(["--device", "cpu"]).run().fails(parts);
        assert_eq!(ended.code, Some(code), "{options:?}");
    }
}

#[test]
fn convolve_makes_the_same_pictures_on_a_gpu() {
    if !has_gpu() {
        return;
    }
    // The program itself compares its contenders. Each picture and each filter meets every setting.
    let settings: [&[(&str, &str)]; 3] =
        [&[], &[("SOFTGPU_CHECK", "1")], &[("SOFTGPU_REVERSE", "1")]];
    for (i, picture) in pictures().iter().enumerate() {
        for (j, filter) in FILTERS.into_iter().enumerate() {
            let (on_cpu, _) = convolved(picture, &[filter, &["--device", "cpu"]].concat(), &[]);
            let (options, variables) =
                ([filter, &["--device", "cuda"]].concat(), settings[(i + j) % settings.len()]);
            let (on_gpu, text) = convolved(picture, &options, variables);
            on_gpu.assert_close(&on_cpu, &format!("{options:?} {variables:?}"));
            let names = ["tiled kernel", "untiled kernel", "cuDNN"];
            assert!(names.iter().all(|name| text.contains(name)), "{text}");
        }
    }
}
