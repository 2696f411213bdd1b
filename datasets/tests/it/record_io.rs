//! MXNet's RecordIO: records of one and of several pieces, images with labels, damaged files.

use std::{fs, path::Path};

use candelabrum_datasets::{
    DataFault, Dataset, Error, ImagePipeline, ImageRecord, Pass, RecordDataset, Result,
    ShardOptions, Shards, shards_in,
};
use image::{ImageFormat, RgbImage};

const MAGIC: [u8; 4] = [0x0a, 0x23, 0xd7, 0xce];

fn piece(part: u32, content: &[u8]) -> Vec<u8> {
    let word = part << 29 | content.len() as u32;
    let zeros = vec![0; content.len().next_multiple_of(4) - content.len()];
    [&MAGIC[..], &word.to_le_bytes(), content, &zeros].concat()
}

/// A record as dmlc's `RecordIOWriter` writes it: cut at each magic number at a multiple of 4.
fn record(content: &[u8]) -> Vec<u8> {
    let mut pieces = vec![Vec::new()];
    for word in content.chunks(4) {
        if word == MAGIC {
            pieces.push(Vec::new());
        } else {
            pieces.last_mut().unwrap().extend_from_slice(word);
        }
    }
    let last = pieces.len() - 1;
    let part = |place| match place {
        0 if last == 0 => 0,
        0 => 1,
        place if place == last => 3,
        _ => 2,
    };
    pieces.iter().enumerate().flat_map(|(place, content)| piece(part(place), content)).collect()
}

/// Writes records and the index beside them. Returns the offsets.
fn write(path: &Path, contents: &[Vec<u8>]) -> Vec<usize> {
    let (mut file, mut index, mut offsets) = (Vec::new(), String::new(), Vec::new());
    for (number, content) in contents.iter().enumerate() {
        index += &format!("{number}\t{}\n", file.len());
        offsets.push(file.len());
        file.extend(record(content));
    }
    fs::write(path, file).unwrap();
    fs::write(path.with_extension("idx"), index).unwrap();
    offsets
}

fn open(path: &Path) -> Result<Shards> {
    Shards::open([path], &ShardOptions::default())
}

fn refused(path: &Path, expected: DataFault, parts: &[&str]) {
    let error = open(path).unwrap_err();
    assert!(matches!(error, Error::Data { fault, .. } if fault == expected), "{error}");
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    parts.iter().for_each(|part| assert!(message.contains(part), "{part} not in {message}"));
}

/// Contents of all lengths, with magic numbers at multiples of 4 and at other places.
fn contents() -> Vec<Vec<u8>> {
    let mut contents: Vec<Vec<u8>> = (0..9).map(|len| (0..len).collect()).collect();
    contents.push(MAGIC.to_vec());
    contents.push([&MAGIC[..], &MAGIC, b"end"].concat());
    contents.push([b"four", &MAGIC[..], b"and three more", &MAGIC].concat());
    contents.push([b"four", &MAGIC[..], b"four", &MAGIC[..], b"12"].concat());
    contents
}

#[test]
fn records_of_one_and_of_several_pieces_are_read_with_their_magic_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("train.rec");
    let contents = contents();
    assert!(record(&contents[12]).len() > record(b"four").len() * 2, "it has three pieces");
    write(&path, &contents);
    assert_eq!(shards_in(dir.path()).unwrap(), [&*path], "the index is no shard");
    for keep_index in [false, true, true] {
        let options = ShardOptions { keep_index, ..ShardOptions::default() };
        let shards = Shards::open([&path], &options).unwrap();
        assert_eq!(shards.len(), contents.len());
        for (number, content) in contents.iter().enumerate() {
            let record = shards.record(number).unwrap();
            assert_eq!(record.data(), content, "record {number}");
            assert_eq!(record.key(), format!("train.rec:{number}"));
        }
    }
    fs::remove_file(path.with_extension("idx")).unwrap();
    assert_eq!(open(&path).unwrap().len(), contents.len(), "an index need not be there");
}

/// The bytes of a PNG of one color.
fn png(color: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let image = RgbImage::from_pixel(5, 4, image::Rgb([color, 0, 255]));
    image.write_to(&mut std::io::Cursor::new(&mut bytes), ImageFormat::Png).unwrap();
    bytes
}

fn image_record(labels: &[f32], id: u64, image: &[u8]) -> Vec<u8> {
    let (flag, label) = if labels.len() == 1 { (0, labels[0]) } else { (labels.len() as u32, 0.0) };
    let mut record = [flag.to_le_bytes(), label.to_le_bytes()].concat();
    record.extend_from_slice(&id.to_le_bytes());
    record.extend_from_slice(&7_u64.to_le_bytes());
    if flag > 0 {
        labels.iter().for_each(|label| record.extend_from_slice(&label.to_le_bytes()));
    }
    record.extend_from_slice(image);
    record
}

#[test]
fn images_of_im2rec_become_batches() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pictures.rec");
    let id = u64::from(u32::MAX) + 5;
    let several = image_record(&[0.25, -1.0, 3.5], id, b"picture");
    write(
        &path,
        &[image_record(&[3.0], 0, &png(51)), image_record(&[999.0], 1, &png(255)), several],
    );
    let shards = open(&path).unwrap();
    let record = shards.record(2).unwrap();
    let image = ImageRecord::from_record(&record).unwrap();
    let expected = ImageRecord { labels: vec![0.25, -1.0, 3.5], id, id2: 7, image: b"picture" };
    assert_eq!(image, expected);
    assert!(image.class().unwrap_err().to_string().contains("0.25 is not the number of a class"));

    let pipeline = ImagePipeline::rgb([4, 5]).unwrap();
    let data = RecordDataset::new("pictures", shards, move |record, pass| {
        let image = ImageRecord::from_record(record)?;
        Ok((pipeline.tensor(image.image, record.sample(), pass)?, image.class()?))
    });
    let (xs, ys) = data.read(&[1, 0], &Pass::evaluation()).unwrap();
    assert_eq!((xs.dims(), ys.to_vec1::<u32>().unwrap()), (&[2, 3, 4, 5][..], vec![999, 3]));
    let first = xs.flatten_from(1).unwrap().to_vec2::<f32>().unwrap();
    assert_eq!([first[0][0], first[1][0], first[1][59]], [1.0, 0.2, 1.0]);
    let text = data.read(&[2], &Pass::evaluation()).unwrap_err().to_string();
    assert!(text.contains("pictures.rec: sample \"pictures.rec:2\""), "{text}");

    write(&path, &[b"short".to_vec(), image_record(&[1.0, 2.0], 0, b"")[..28].to_vec()]);
    let shards = open(&path).unwrap();
    for number in 0..2 {
        let record = shards.record(number).unwrap();
        let text = ImageRecord::from_record(&record).unwrap_err().to_string();
        assert!(text.contains("bytes are no image record"), "{text}");
    }
}

#[test]
fn a_file_that_is_cut_anywhere_but_between_records_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.rec");
    let offsets = write(&path, &contents());
    let whole = fs::read(&path).unwrap();
    for len in (1..whole.len()).filter(|len| !offsets.contains(len)) {
        fs::write(&path, &whole[..len]).unwrap();
        refused(&path, DataFault::CutShort, &["cut.rec: the record at byte ", "cut short"]);
    }
    // Between two records the index shows it.
    fs::write(&path, &whole[..offsets[5]]).unwrap();
    let outside = format!("byte {} is outside", offsets[5]);
    refused(&path, DataFault::Mismatch, &["cut.idx, line 6: ", &outside, "cut.rec"]);
}

#[test]
fn an_index_that_does_not_fit_is_named_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    let offsets = write(&path, &contents());
    let index = path.with_extension("idx");
    let good = fs::read_to_string(&index).unwrap();
    for (content, parts) in [
        (format!("{good}13\t123456\n"), ["a.idx, line 14: byte 123456 is outside", "a.rec"]),
        (
            good.replace(&format!("\t{}\n", offsets[3]), "\t5\n"),
            ["a.idx, line 4: ", "begins at byte 5"],
        ),
        ("0\t0\n".to_owned(), ["a.idx: names 1 of the 13 records", "delete it"]),
        (good.replace("2\t", "2 "), ["a.idx, line 3: ", "not a number, a tab and an offset"]),
        (good.replace("1\t8\n", "1\t0\n"), ["a.idx: names 12 of the 13 records", "a.rec"]),
    ] {
        fs::write(&index, content).unwrap();
        refused(&path, DataFault::Mismatch, &parts);
    }
}

#[test]
fn another_format_and_pieces_in_disorder_are_named_with_their_byte() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b.rec");
    let check = |content: &[u8], parts: &[&str]| {
        fs::write(&path, content).unwrap();
        refused(&path, DataFault::Corrupt, parts);
    };
    check(&[1; 16], &["b.rec: at byte 0: magic number 0x01010101, expected 0xced7230a"]);
    let mut second = [record(b"12345"), record(b"six")].concat();
    second[16] ^= 1;
    check(&second, &["b.rec: at byte 16: magic number"]);
    check(&piece(2, b"x"), &["part 2 of a record that has not begun"]);
    check(&[piece(1, b"x"), piece(0, b"y")].concat(), &["at byte 12: part 0 inside a record"]);
    // A file that has changed since it was opened.
    fs::write(&path, [record(b"12345"), record(b"six")].concat()).unwrap();
    let shards = open(&path).unwrap();
    let mut changed = fs::read(&path).unwrap();
    changed[20] = 200;
    fs::write(&path, changed).unwrap();
    let text = shards.record(1).unwrap_err().to_string();
    assert!(text.contains("b.rec: at byte 16") && text.contains("has changed"), "{text}");
}
