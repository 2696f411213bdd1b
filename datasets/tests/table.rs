//! Tables of text: what is read, and which cell is wrong.

#![expect(clippy::unwrap_used, reason = "helpers of tests, outside test functions")]

use candelabrum_datasets::{CsvConfig, CsvTable, CsvTargets, Dataset, Error, Pass, TableError};

const TREES: &str = "\
width, height ,kind,rings
1.5,2,oak,10
1, -1e2,fir,20
3,2.5,oak,30
2,2,\"elm, old\",40
";

fn read(text: &str, config: &CsvConfig) -> Result<CsvTable, TableError> {
    match CsvTable::read(text.as_bytes(), "trees.csv", config) {
        Ok(table) => Ok(table),
        Err(Error::Table(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

fn message(text: &str, config: &CsvConfig) -> String {
    read(text, config).unwrap_err().to_string()
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
    assert_eq!(
        message(text, &config),
        "trees.csv, line 3: \"birch\" is not one of the 3 known classes"
    );
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
        let expected = format!("trees.csv, line 4, column \"width\": {shown} is no finite number");
        assert_eq!(message(&text, &class), expected);
    }
    let text = TREES.replace("2.5,oak", "2.5, ");
    let expected = "trees.csv, line 4, column \"kind\": no class: fill the cell or delete the row";
    assert_eq!(message(&text, &class), expected);
    // A quoted cell may have several lines.
    let text = "x,kind\n1,\"a\nb\"\noops,c\n";
    assert!(message(text, &class).starts_with("trees.csv, line 4, column \"x\""));
    let text = TREES.replace(",30", ",thirty");
    let error = read(&text, &CsvConfig::numbers(["rings"])).unwrap_err();
    assert!(matches!(error, TableError::Cell { line: 2, column, .. } if column == "kind"));
}

#[test]
fn rows_of_other_lengths_are_named_by_their_lines() {
    let class = CsvConfig::class("kind");
    let short = TREES.replace("3,2.5,oak,30", "3,2.5,oak");
    assert_eq!(message(&short, &class), "trees.csv, line 4: 3 cells, the header has 4");
    let long = TREES.replace("3,2.5,oak,30", "3,2.5,oak,30,");
    assert_eq!(message(&long, &class), "trees.csv, line 4: 5 cells, the header has 4");
}

#[test]
fn columns_that_do_not_exist_or_exist_twice_are_errors() {
    let expected = "trees.csv: no column \"type\"; the header has width, height, kind, rings";
    assert_eq!(message(TREES, &CsvConfig::class("type")), expected);
    let config = CsvConfig { inputs: Some(vec!["depth".into()]), ..CsvConfig::class("kind") };
    assert!(message(TREES, &config).starts_with("trees.csv: no column \"depth\""));
    let twice = TREES.replace(" height ", "width");
    let config = CsvConfig { inputs: Some(vec!["width".into()]), ..CsvConfig::class("kind") };
    assert_eq!(
        message(&twice, &config),
        "trees.csv: several columns \"width\": rename all but one"
    );
}

#[test]
fn tables_without_rows_or_columns_are_errors() {
    let empty = |text, config: &CsvConfig| {
        assert!(matches!(read(text, config), Err(TableError::Empty { .. })), "{text:?}");
    };
    empty("x,kind\n", &CsvConfig::class("kind"));
    empty("kind\na\n", &CsvConfig::class("kind"));
    empty(
        "x\n1\n",
        &CsvConfig { inputs: None, targets: CsvTargets::Numbers(vec![]), delimiter: b',' },
    );
    assert!(matches!(read("", &CsvConfig::class("y")), Err(TableError::NoColumn { .. })));
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
    let mean = train.iter().sum::<f32>() / 40.0;
    assert!((numbers.mean[0] - mean).abs() < 1e-4, "the mean of the training part alone");
    let xs: Vec<Vec<f32>> = split.test.tensors()[0].to_vec2().unwrap();
    for (row, y) in xs.iter().zip(&test) {
        assert!((row[0] - (y - numbers.mean[0]) / numbers.std[0]).abs() < 1e-5);
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
