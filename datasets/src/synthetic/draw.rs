//! Strokes to pixels: distort, draw, blur, add noise.

use rand_chacha::rand_core::RngCore;

use super::glyphs::{GLYPHS, GlyphPoint, Stroke};
use crate::{
    mnist::SIDE,
    rng::{below, uniform},
};

/// The strength of the differences between samples. These numbers determine the difficulty of the
/// task.
mod strength {
    /// Jitter of a control point, in units of the glyph's box.
    pub(super) const JITTER: f32 = 0.035;
    /// The tangent of half the largest rotation: 0.15 is 17 degrees in either direction.
    pub(super) const HALF_ROTATION: f32 = 0.15;
    /// The largest shear, in pixels to the side per pixel of height.
    pub(super) const SHEAR: f32 = 0.28;
    /// Width and height of the digit in pixels.
    pub(super) const WIDTH: (f32, f32) = (12.0, 18.0);
    pub(super) const HEIGHT: (f32, f32) = (16.0, 21.0);
    /// The largest move in either direction, in pixels.
    pub(super) const MOVE: f32 = 2.5;
    /// Radius of the pen in pixels.
    pub(super) const PEN: (f32, f32) = (0.8, 1.7);
    /// Share of the 3 x 3 blur in the result.
    pub(super) const BLUR: (f32, f32) = (0.1, 0.9);
    /// Brightness of the pen.
    pub(super) const INK: (f32, f32) = (170.0, 255.0);
    /// Amplitude of the noise.
    pub(super) const NOISE: (f32, f32) = (5.0, 35.0);
}

/// Segments between two control points of a stroke.
const SEGMENTS: usize = 5;

/// The length of a row, with a border of one pixel on either side for the blur.
const BORDERED: usize = SIDE + 2;

type Canvas = [f32; BORDERED * BORDERED];

/// Draws one sample of a digit into an image of 28 x 28 bytes.
pub(super) fn draw(rng: &mut impl RngCore, digit: u8, image: &mut [u8]) {
    let ways = GLYPHS[usize::from(digit) % GLYPHS.len()];
    let glyph = ways[below(rng, ways.len() as u32) as usize];
    let distortion = Distortion::draw(rng);
    let radius = range(rng, strength::PEN);

    let mut canvas: Canvas = [f32::INFINITY; BORDERED * BORDERED];
    let mut points = Vec::with_capacity(16);
    for stroke in glyph {
        distort(rng, stroke, &distortion, &mut points);
        draw_stroke(&points, radius, &mut canvas);
    }
    ink(&mut canvas, radius, range(rng, strength::INK));
    let (blur, noise) = (range(rng, strength::BLUR), range(rng, strength::NOISE));
    develop(rng, &canvas, blur, noise, image);
}

fn range(rng: &mut impl RngCore, (low, high): (f32, f32)) -> f32 {
    uniform(rng, low, high)
}

/// An affine map from the glyph's unit box to pixels.
struct Distortion {
    /// Rows of the matrix.
    matrix: [[f32; 2]; 2],
    centre: GlyphPoint,
}

impl Distortion {
    fn draw(rng: &mut impl RngCore) -> Self {
        // With t the tangent of half the angle, sine and cosine need only divisions.
        let t = uniform(rng, -strength::HALF_ROTATION, strength::HALF_ROTATION);
        let (cosine, sine) = ((1.0 - t * t) / (1.0 + t * t), 2.0 * t / (1.0 + t * t));
        let shear = uniform(rng, -strength::SHEAR, strength::SHEAR);
        let (width, height) = (range(rng, strength::WIDTH), range(rng, strength::HEIGHT));
        let middle = (SIDE - 1) as f32 / 2.0;
        let x = middle + uniform(rng, -strength::MOVE, strength::MOVE);
        let y = middle + uniform(rng, -strength::MOVE, strength::MOVE);
        Self {
            matrix: [
                [cosine * width, (cosine * shear - sine) * height],
                [sine * width, (sine * shear + cosine) * height],
            ],
            centre: (x, y),
        }
    }

    fn apply(&self, (x, y): GlyphPoint) -> GlyphPoint {
        let (x, y) = (x - 0.5, y - 0.5);
        let [across, down] = &self.matrix;
        (self.centre.0 + across[0] * x + across[1] * y, self.centre.1 + down[0] * x + down[1] * y)
    }
}

/// The control points of one stroke in pixels, each moved a little.
fn distort(
    rng: &mut impl RngCore,
    stroke: Stroke,
    distortion: &Distortion,
    points: &mut Vec<GlyphPoint>,
) {
    points.clear();
    for &(x, y) in stroke {
        let x = x + uniform(rng, -strength::JITTER, strength::JITTER);
        let y = y + uniform(rng, -strength::JITTER, strength::JITTER);
        points.push(distortion.apply((x, y)));
    }
}

/// Draws a Catmull-Rom curve through the points.
fn draw_stroke(points: &[GlyphPoint], radius: f32, canvas: &mut Canvas) {
    for (i, pair) in points.windows(2).enumerate() {
        let (from, to) = (pair[0], pair[1]);
        let before = if i == 0 { from } else { points[i - 1] };
        let after = points.get(i + 2).copied().unwrap_or(to);
        let mut last = from;
        for step in 1..=SEGMENTS {
            let next = catmull_rom([before, from, to, after], step as f32 / SEGMENTS as f32);
            draw_segment(last, next, radius, canvas);
            last = next;
        }
    }
}

/// The uniform Catmull-Rom spline from the second to the third point, at `t` in \[0, 1\].
fn catmull_rom(points: [GlyphPoint; 4], t: f32) -> GlyphPoint {
    let along = |a: f32, b: f32, c: f32, d: f32| {
        let cubic = 3.0 * (b - c) + d - a;
        let quadratic = 2.0 * a - 5.0 * b + 4.0 * c - d;
        b + 0.5 * t * (c - a + t * (quadratic + t * cubic))
    };
    let [a, b, c, d] = points;
    (along(a.0, b.0, c.0, d.0), along(a.1, b.1, c.1, d.1))
}

/// Reduces the squared distance to the pen's path at all pixels near a segment.
fn draw_segment(from: GlyphPoint, to: GlyphPoint, radius: f32, canvas: &mut Canvas) {
    let reach = radius + 1.0;
    let (along_x, along_y) = (to.0 - from.0, to.1 - from.1);
    let length_squared = (along_x * along_x + along_y * along_y).max(1e-6);
    let rows = pixels_within(from.1.min(to.1) - reach, from.1.max(to.1) + reach);
    let columns = pixels_within(from.0.min(to.0) - reach, from.0.max(to.0) + reach);
    for row in rows {
        for column in columns.clone() {
            let (x, y) = (column as f32 - 1.0 - from.0, row as f32 - 1.0 - from.1);
            let along = ((x * along_x + y * along_y) / length_squared).clamp(0.0, 1.0);
            let (off_x, off_y) = (x - along * along_x, y - along * along_y);
            let pixel = &mut canvas[row * BORDERED + column];
            *pixel = pixel.min(off_x * off_x + off_y * off_y);
        }
    }
}

/// Rows or columns of the canvas between two coordinates of the image.
fn pixels_within(low: f32, high: f32) -> std::ops::Range<usize> {
    // A cast of a negative float saturates at 0.
    (low + 1.0) as usize..((high + 2.0) as usize).min(BORDERED)
}

/// Turns squared distances into brightness, with an edge one pixel wide.
fn ink(canvas: &mut Canvas, radius: f32, brightness: f32) {
    for pixel in canvas {
        *pixel = brightness * (radius + 0.5 - pixel.sqrt()).clamp(0.0, 1.0);
    }
}

/// Blurs with the kernel (1 2 1)/4 in both directions, adds noise and rounds to bytes.
fn develop(rng: &mut impl RngCore, canvas: &Canvas, blur: f32, noise: f32, image: &mut [u8]) {
    for (y, row) in image.chunks_exact_mut(SIDE).enumerate() {
        for (x, pixel) in row.iter_mut().enumerate() {
            let line = |y: usize| {
                let at = y * BORDERED + x;
                canvas[at] + 2.0 * canvas[at + 1] + canvas[at + 2]
            };
            let blurred = (line(y) + 2.0 * line(y + 1) + line(y + 2)) / 16.0;
            let sharp = canvas[(y + 1) * BORDERED + x + 1];
            // Two uniform bytes make a triangular distribution on [-1, 1].
            let bits = rng.next_u32();
            let triangular = ((bits & 0xff) as f32 - (bits >> 8 & 0xff) as f32) / 255.0;
            let value = sharp + blur * (blurred - sharp) + noise * triangular;
            *pixel = (value + 0.5) as u8; // saturates at 0 and 255
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spline_passes_through_its_points() {
        let points = [(0.0, 0.0), (1.0, 2.0), (3.0, 1.0), (4.0, 4.0)];
        assert_eq!(catmull_rom(points, 0.0), (1.0, 2.0));
        assert_eq!(catmull_rom(points, 1.0), (3.0, 1.0));
    }

    #[test]
    fn every_glyph_can_be_drawn_and_lies_in_its_box() {
        for ways in GLYPHS {
            assert!(!ways.is_empty());
            for stroke in ways.iter().copied().flatten() {
                assert!(stroke.len() >= 2);
                let inside =
                    |&(x, y): &GlyphPoint| (0.0..=1.0).contains(&x) && (0.0..=1.0).contains(&y);
                assert!(stroke.iter().all(inside));
            }
        }
    }

    #[test]
    fn a_segment_is_drawn_where_it_is() {
        let mut canvas: Canvas = [f32::INFINITY; BORDERED * BORDERED];
        draw_segment((5.0, 10.0), (15.0, 10.0), 1.0, &mut canvas);
        ink(&mut canvas, 1.0, 200.0);
        let at = |x: usize, y: usize| canvas[(y + 1) * BORDERED + x + 1];
        assert_eq!((at(10, 10), at(10, 11), at(10, 12), at(10, 13)), (200.0, 100.0, 0.0, 0.0));
        assert_eq!((at(4, 10), at(3, 10), at(16, 10), at(17, 10)), (100.0, 0.0, 100.0, 0.0));
    }

    #[test]
    fn strokes_outside_the_image_are_clipped() {
        let mut canvas: Canvas = [f32::INFINITY; BORDERED * BORDERED];
        draw_segment((-50.0, -50.0), (80.0, 80.0), 2.0, &mut canvas);
        draw_segment((-9.0, 5.0), (-5.0, 5.0), 1.0, &mut canvas);
        assert_eq!(canvas[0], 0.0);
    }
}
