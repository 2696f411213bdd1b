//! Tables of text: what is read, and which cell is wrong.

use candelabrum_datasets::{CsvConfig, CsvTable, CsvTargets, Dataset, Error, Pass, Result};
use candle_core::DType;

const TREES: &str = "\
width, height ,kind,rings
1.5,2,oak,10
1, -1e2,fir,20
3,2.5,oak,30
2,2,\"elm, old\",40
";

fn read(text: &str, config: &CsvConfig) -> Result<CsvTable> {
    CsvTable::read(text.as_bytes(), "trees.csv", config)
}

/// Checks the error of a table: how its message begins after the name of the file.
fn refused(text: &str, config: &CsvConfig, expected: &str) {
    let message = read(text, config).unwrap_err().to_string();
    assert!(message.starts_with(&format!("trees.csv{expected}")), "{text:?}: {message}");
}

#[test]
fn classes_are_numbered_by_their_names_and_all_other_columns_are_inputs() {
    let table = read(TREES, &CsvConfig::class("kind")).unwrap();
    assert_eq!(
        (table.rows(), table.inputs()),
        (4, &["width", "height", "rings"].map(String::from)[..])
    );
    assert_eq!(table.classes(), ["elm, old", "fir", "oak"]);
    let batch = table.dataset().unwrap().read(&[3, 1, 0], &Pass::evaluation()).unwrap();
    let xs: Vec<Vec<f32>> = batch.xs.to_vec2().unwrap();
    assert_eq!(xs, [[2.0, 2.0, 40.0], [1.0, -100.0, 20.0], [1.5, 2.0, 10.0]]);
    assert_eq!(batch.ys.to_vec1::<u32>().unwrap(), [0, 1, 2]);
}

#[test]
fn targets_may_be_several_columns_of_numbers_and_inputs_chosen_ones() {
    let config =
        CsvConfig { inputs: Some(vec!["height".into()]), ..CsvConfig::numbers(["rings", "width"]) };
    let table = read(TREES, &config).unwrap();
    let batch = table.dataset().unwrap().read(&[0, 2], &Pass::evaluation()).unwrap();
    assert_eq!(batch.xs.to_vec2::<f32>().unwrap(), [[2.0], [2.5]]);
    assert_eq!(batch.ys.to_vec2::<f32>().unwrap(), [[10.0, 1.5], [30.0, 3.0]]);
    assert_eq!(batch.len(), 2);
    assert!(table.classes().is_empty());
}

#[test]
fn more_classes_than_a_byte_can_name_are_possible() {
    let rows: String = (0..700).map(|i| format!("{i},class {:03}\n", i * 3 % 700)).collect();
    let table = read(&format!("x,y\n{rows}"), &CsvConfig::class("y")).unwrap();
    assert_eq!(table.classes().len(), 700);
    let batch = table.dataset().unwrap().read(&[99], &Pass::evaluation()).unwrap();
    assert_eq!(batch.ys.to_vec1::<u32>().unwrap(), [297]);
}

#[test]
fn a_second_table_has_the_labels_of_the_first() {
    let classes = read(TREES, &CsvConfig::class("kind")).unwrap().classes().to_vec();
    let targets = CsvTargets::KnownClass { column: "kind".into(), classes: classes.clone() };
    let config = CsvConfig { targets, ..CsvConfig::class("kind") };
    let second = read("width,height,kind,rings\n1,1,oak,1\n2,2,fir,2\n", &config).unwrap();
    assert_eq!(second.classes(), classes);
    let batch = second.dataset().unwrap().read(&[0, 1], &Pass::evaluation()).unwrap();
    assert_eq!(batch.ys.to_vec1::<u32>().unwrap(), [2, 1], "not 1 and 0");
    let text = "width,height,kind,rings\n1,1,oak,1\n2,2,birch,2\n";
    refused(text, &config, ", line 3: \"birch\" is not one of the 3 known classes");
}

#[test]
fn other_delimiters_byte_order_marks_and_line_ends_are_read() {
    let config = CsvConfig { delimiter: b';', ..CsvConfig::class("y") };
    let table = read("\u{feff}x;y\r\n1;a\r\n2;b", &config).unwrap();
    assert_eq!((table.rows(), table.inputs()), (2, &["x".to_owned()][..]));
}

#[test]
fn a_bad_cell_is_named_by_file_line_and_column() {
    let class = CsvConfig::class("kind");
    for (cell, shown) in
        [("wide", "\"wide\""), ("", "\"\""), ("NaN", "\"NaN\""), ("inf", "\"inf\"")]
    {
        let text = TREES.replace("3,2.5,oak", &format!("{cell},2.5,oak"));
        let expected = format!(", line 4, column \"width\": {shown} is no finite number");
        refused(&text, &class, &expected);
    }
    let expected = ", line 4, column \"kind\": no class: fill the cell or delete the row";
    refused(&TREES.replace("2.5,oak", "2.5, "), &class, expected);
    // A quoted cell may have several lines.
    refused("x,kind\n1,\"a\nb\"\noops,c\n", &class, ", line 4, column \"x\"");
    let text = TREES.replace(",30", ",thirty");
    let error = read(&text, &CsvConfig::numbers(["rings"])).unwrap_err();
    let Error::Data { place, .. } = &error else { panic!("{error}") };
    assert_eq!((place.line, place.column.as_deref()), (Some(2), Some("kind")));
    assert!(error.to_string().ends_with("is no finite number"), "{error}");
}

#[test]
fn rows_of_other_lengths_are_named_by_their_lines() {
    let class = CsvConfig::class("kind");
    let short = TREES.replace("3,2.5,oak,30", "3,2.5,oak");
    refused(&short, &class, ", line 4: 3 cells, the header has 4");
    let long = TREES.replace("3,2.5,oak,30", "3,2.5,oak,30,");
    refused(&long, &class, ", line 4: 5 cells, the header has 4");
}

#[test]
fn columns_that_do_not_exist_or_exist_twice_are_errors() {
    let expected = ": no column \"type\"; the header has width, height, kind, rings";
    refused(TREES, &CsvConfig::class("type"), expected);
    let config = CsvConfig { inputs: Some(vec!["depth".into()]), ..CsvConfig::class("kind") };
    refused(TREES, &config, ": no column \"depth\"");
    let twice = TREES.replace(" height ", "width");
    let config = CsvConfig { inputs: Some(vec!["width".into()]), ..CsvConfig::class("kind") };
    refused(&twice, &config, ": several columns \"width\": rename all but one");
}

#[test]
fn tables_without_rows_or_columns_are_errors() {
    let class = CsvConfig::class("kind");
    refused("x,kind\n", &class, ": 0 rows, 1 columns of inputs and 1 of targets: none may be 0");
    refused("kind\na\n", &class, ": 1 rows, 0 columns of inputs and 1 of targets");
    let no_targets = CsvConfig { targets: CsvTargets::Numbers(vec![]), ..class };
    refused("x\n1\n", &no_targets, ": 1 rows, 1 columns of inputs and 0 of targets");
    refused("", &CsvConfig::class("y"), ": no column \"y\"");
    let bytes = [b"x,y\n1,".as_slice(), &[0xff], b"\n"].concat();
    let error = CsvTable::read(&bytes[..], "trees.csv", &CsvConfig::class("y")).unwrap_err();
    assert_eq!(error.to_string(), "trees.csv, line 2: not UTF-8: convert the file");
    let error = CsvTable::open("/no/such/file.csv", &CsvConfig::class("y")).unwrap_err();
    assert!(error.to_string().starts_with("/no/such/file.csv: cannot open"), "{error}");
}

#[test]
fn a_split_has_every_row_once_and_is_standardized_by_its_training_part() {
    let rows: String = (0..50).map(|i| format!("{i},{},{i}\n", 2 * i)).collect();
    let text = format!("x,z,y\n{rows}");
    let table = read(&text, &CsvConfig::numbers(["y"])).unwrap();
    let split = table.split(0.2, 3).unwrap();
    let targets = |data: &candelabrum_datasets::TensorDataset<_>| -> Vec<f32> {
        data.tensors()[1].flatten_all().unwrap().to_vec1().unwrap()
    };
    let (train, test) = (targets(&split.train), targets(&split.test));
    assert_eq!((train.len(), test.len()), (40, 10));
    assert!(train.is_sorted() && test.is_sorted());
    assert_ne!(test, (0..10).map(|i| i as f32).collect::<Vec<_>>());
    let mut all = [train.clone(), test.clone()].concat();
    all.sort_by(f32::total_cmp);
    assert_eq!(all, (0..50).map(|i| i as f32).collect::<Vec<_>>());
    assert_eq!(targets(&table.split(0.2, 3).unwrap().test), test, "a function of the seed");
    assert_ne!(targets(&table.split(0.2, 4).unwrap().test), test);

    let (split, numbers) = split.standardized().unwrap();
    let mean = f64::from(train.iter().sum::<f32>() / 40.0);
    assert!((numbers.mean[0] - mean).abs() < 1e-4, "the mean of the training part alone");
    let xs: Vec<Vec<f32>> = split.test.tensors()[0].to_vec2().unwrap();
    for (row, y) in xs.iter().zip(&test) {
        let expected = (f64::from(*y) - numbers.mean[0]) / numbers.std[0];
        assert!((f64::from(row[0]) - expected).abs() < 1e-5);
        assert!((row[1] - row[0]).abs() < 1e-5);
    }
    let (split, units) = split.standardized_targets().unwrap();
    assert!((units.mean[0] - mean).abs() < 1e-4, "the mean of the training part alone");
    let back = units.undo(&split.test.tensors()[1]).unwrap();
    let back: Vec<f32> = back.flatten_all().unwrap().to_vec1().unwrap();
    assert!(back.iter().zip(&test).all(|(back, y)| (back - y).abs() < 1e-4), "{back:?}");
    let classes = read("x,y\n1,a\n2,b\n", &CsvConfig::class("y")).unwrap();
    assert!(classes.split(0.5, 0).unwrap().standardized_targets().is_err());
    for share in [0.0, 1.0, -1.0, f64::NAN, 0.001] {
        assert!(table.split(share, 0).is_err(), "{share}");
    }
}

/// Times in seconds: other numbers, but one and the same in f32.
const TIMES: &str = "time,id,y\n1600000001,1,0\n1600000002,2,1\n1600000063,3,0\n1600000064,4,1\n";

#[test]
fn numbers_beyond_f32_stay_what_they_are_until_they_are_standardized() {
    let table = read(TIMES, &CsvConfig::numbers(["y"])).unwrap();
    let split = table.split(0.25, 0).unwrap();
    let rounded = "trees.csv, line 2, column \"time\": 1600000001 would become 1600000000";
    for data in [&split.train, &split.test, &table.dataset().unwrap()] {
        assert_eq!(data.tensors()[0].dtype(), DType::F64);
        let error = data.read(&[0], &Pass::evaluation()).unwrap_err().to_string();
        assert!(error.starts_with(rounded) && error.contains("standardize"), "{error}");
    }
    let all = table.dataset().unwrap();
    let (split, numbers) = split.standardized().unwrap();
    assert_eq!(split.train.tensors()[0].dtype(), DType::F32);
    let mut times: Vec<f64> = Vec::new();
    for data in [&split.train, &split.test] {
        let samples: Vec<u32> = (0..data.len() as u32).collect();
        let xs: Vec<Vec<f32>> =
            data.read(&samples, &Pass::evaluation()).unwrap().xs.to_vec2().unwrap();
        let time = |row: Vec<f32>| f64::from(row[0]) * numbers.std[0] + numbers.mean[0];
        times.extend(xs.into_iter().map(time));
    }
    times.sort_by(f64::total_cmp);
    for (time, second) in times.iter().zip([1.0, 2.0, 63.0, 64.0]) {
        assert!((time - 1_600_000_000.0 - second).abs() < 1e-3, "{times:?}");
    }
    // Later inputs are standardized from the numbers as they were written, too.
    let later = numbers.apply(&all.tensors()[0]).unwrap().to_vec2::<f64>().unwrap();
    assert!((later[0][0] * numbers.std[0] + numbers.mean[0] - 1_600_000_001.0).abs() < 1e-3);
}

#[test]
fn targets_beyond_f32_are_errors_until_they_are_standardized() {
    let config = CsvConfig { inputs: Some(vec!["y".into()]), ..CsvConfig::numbers(["time", "id"]) };
    let split = read(TIMES, &config).unwrap().split(0.25, 0).unwrap();
    let (split, _) = split.standardized().unwrap();
    let error = split.train.read(&[0], &Pass::evaluation()).unwrap_err().to_string();
    assert!(error.starts_with("trees.csv, line 2, column \"time\": 1600000001"), "{error}");
    let (split, units) = split.standardized_targets().unwrap();
    let ys = split.test.read(&[0], &Pass::evaluation()).unwrap().ys;
    let back = units.undo(&ys.to_dtype(DType::F64).unwrap()).unwrap().to_vec2::<f64>().unwrap();
    let second = back[0][0] - 1_600_000_000.0;
    assert!([1.0, 2.0, 63.0, 64.0].iter().any(|s| (second - s).abs() < 1e-3), "{second}");
}

#[test]
fn a_number_that_would_be_another_one_is_an_error_wherever_it_is_written() {
    let class = CsvConfig::class("y");
    for (cell, number) in [
        ("16777217", "16777217"),
        ("-1600000001.0", "-1600000001"),
        ("1.600000001e9", "1600000001"),
        ("1600000001.25", "1600000001.25"),
        ("1e-50", "0.00000000000000000000000000000000000000000000000001"),
    ] {
        let data = read(&format!("x,y\n1,a\n{cell},b\n"), &class).unwrap().dataset().unwrap();
        let error = data.read(&[0], &Pass::evaluation()).unwrap_err().to_string();
        let expected = format!("trees.csv, line 3, column \"x\": {number} would become ");
        assert!(error.starts_with(&expected), "{error}");
    }
    for (cell, number) in [
        ("12345678901234567890", "12345678901234567000"),
        ("-9007199254740993", "-9007199254740992"),
        ("1600000001123456789", "1600000001123456800"),
    ] {
        let expected = format!(", line 3, column \"x\": {cell} would become {number}: ");
        refused(&format!("x,y\n1,a\n{cell},b\n"), &class, &expected);
    }
    // Numbers whose rounding does not matter, and those that f32 has.
    let text = "x,z,y\n0.123456789,16777216,a\n0.987654321,1.5e10,b\n52.52000659999,6.02e23,c\n";
    let data = read(text, &class).unwrap().dataset().unwrap();
    assert_eq!(data.tensors()[0].dtype(), DType::F32);
    data.read(&[0, 1, 2], &Pass::evaluation()).unwrap();
    // Days of astronomers: no whole numbers, and less than f32's integers, but f32 has four a day.
    let text = "x,y\n2459000.12,a\n2459000.123,b\n2459000.1234,a\n";
    let table = read(text, &class).unwrap();
    assert!(table.dataset().unwrap().read(&[0], &Pass::evaluation()).is_err());
    let (split, _) = table.split(0.34, 0).unwrap().standardized().unwrap();
    split.train.read(&[0, 1], &Pass::evaluation()).unwrap();
}

#[test]
fn a_column_without_a_name_or_with_that_of_another_one_is_no_input() {
    let class = CsvConfig::class("y");
    // What pandas writes, and a separator at the end of each line.
    refused(",x,y\n0,1,a\n1,2,b\n", &class, ": column 1 of 3 has no name");
    refused("x,y,\n1,a,\n", &class, ": column 3 of 3 has no name");
    refused("x,x,y\n1,2,a\n", &class, ": several columns \"x\": rename all but one");
    // Chosen inputs leave the others out.
    let config = CsvConfig { inputs: Some(vec!["x".into()]), ..class };
    let table = read(",x,z,z,y\n0,1,1,1,a\n1,2,1,1,b\n", &config).unwrap();
    assert_eq!(table.inputs(), ["x"]);
}

#[test]
fn a_quote_in_a_wrong_place_takes_no_rows_away() {
    let class = CsvConfig::class("y");
    refused("x,y\n1,\"a\n2,b\n3,c\n", &class, ", line 2: the quote of a cell is not closed");
    refused("x,y\n1,\"a\n2,\"b\"\n3,c\n", &class, ", line 3: text follows the quote");
    refused("x,y\n\"1,a\n2,b\n", &class, ", line 2: the quote");
    // A long cell that is still being read when another one is wrong.
    let long = format!("x,y\noops,a\n1,\"{}\"\n", "long\n".repeat(99_999));
    refused(&long, &class, ", line 2, column \"x\": \"oops\"");
    let table = read("x,y\n1,\"a \"\"b\"\"\" \n\n2,5\" pipe\n", &class).unwrap();
    assert_eq!(table.classes(), ["5\" pipe", "a \"b\""]);
}

#[test]
fn the_zeros_of_an_unfinished_file_are_no_part_of_a_class() {
    refused("x,y\n1,a\n2,b\0\0\0", &CsvConfig::class("y"), ", line 3: a zero byte");
}
