//! Texts with classes: from files, tables and folders to padded tokens, documents and buckets.

use std::{fs, path::Path, sync::Arc};

use candelabrum_datasets::{
    Batch, DataFault, Dataset, DistributedSampler, Error, LabelledTexts, Loader, LoaderOptions,
    PaddedTexts, Pass, Remainder, Result, SamplerConfig, Shuffle, TextEncoding, TextOptions,
    Vocabulary,
};
use candle_core::Tensor;

fn options() -> TextOptions {
    TextOptions::default()
}

/// The kind of the fault, and the message.
fn refused(read: Result<LabelledTexts>, expected: DataFault, parts: &[&str]) {
    let error = read.unwrap_err();
    assert!(matches!(error, Error::Data { fault, .. } if fault == expected), "{error}");
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    parts.iter().for_each(|part| assert!(message.contains(part), "{part} not in {message}"));
}

fn texts(texts: &LabelledTexts) -> Vec<(&str, &str)> {
    let classes = texts.labels().iter().map(|&label| &*texts.classes()[label as usize]);
    classes.zip(texts.texts()).collect()
}

/// A set of one file for each class.
fn of_lines(dir: &Path, files: &[(&str, &str)]) -> LabelledTexts {
    let paths: Vec<_> = files.iter().map(|(class, _)| (*class, dir.join(class))).collect();
    files.iter().zip(&paths).for_each(|((_, text), (_, path))| fs::write(path, text).unwrap());
    LabelledTexts::lines(paths, &options()).unwrap()
}

fn rows(xs: &Tensor) -> Vec<Vec<u32>> {
    xs.to_vec2().unwrap()
}

fn read(data: &PaddedTexts, samples: &[u32]) -> Batch {
    data.read(samples, &Pass::evaluation()).unwrap()
}

#[test]
fn lines_tables_and_folders_give_the_same_texts() {
    let dir = tempfile::tempdir().unwrap();
    let expected = [("bad", "dull ."), ("bad", "no plot"), ("good", "so good !")];
    let lines =
        of_lines(dir.path(), &[("bad", "dull .\r\n\n \t\nno plot\n"), ("good", "so good !")]);
    assert_eq!((texts(&lines), lines.left_out()), (expected.to_vec(), 2));
    assert_eq!(
        (lines.classes(), lines.labels()),
        (&["bad".to_owned(), "good".into()][..], &[0, 0, 1][..])
    );

    let table = dir.path().join("table.tsv");
    fs::write(&table, "7\tdull .\tbad\n\n8\tno plot\tbad\n9\t\tgood\n1\tso good !\tgood\tmore\n")
        .unwrap();
    let table = LabelledTexts::tab_separated(&table, [2, 1], &options()).unwrap();
    assert_eq!((texts(&table), table.left_out()), (expected.to_vec(), 2));

    let root = dir.path().join("folders");
    for (name, text) in [
        ("bad/1.txt", "dull ."),
        ("bad/2", "no plot"),
        ("good/1", "so good !"),
        ("good/.x", "hidden"),
        ("good/empty", " \n"),
        ("README", "about"),
    ] {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let folder = LabelledTexts::folder(&root, &options()).unwrap();
    assert_eq!((texts(&folder), folder.left_out()), (expected.to_vec(), 3));
}

#[test]
fn a_second_set_has_the_labels_of_the_first_and_no_other_class() {
    let dir = tempfile::tempdir().unwrap();
    let first = of_lines(dir.path(), &[("b", "x"), ("a", "y"), ("c", "z")]);
    let known = TextOptions { classes: Some(first.classes().to_vec()), ..options() };
    let path = dir.path().join("second");
    fs::write(&path, "c\tone\na\ttwo\n").unwrap();
    let second = LabelledTexts::tab_separated(&path, [0, 1], &known).unwrap();
    assert_eq!((second.labels(), second.classes()), (&[2, 0][..], first.classes()));
    fs::write(&path, "c\tone\nd\ttwo\n").unwrap();
    let parts = ["second, line 2: ", "\"d\" is not one of the 3"];
    refused(LabelledTexts::tab_separated(&path, [0, 1], &known), DataFault::Mismatch, &parts);
}

#[test]
fn text_in_another_encoding_is_named_with_file_and_line_unless_it_is_said() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("pos")).unwrap();
    let path = dir.path().join("pos/rt.txt");
    fs::write(&path, b"plain\nit\x92s caf\xe9 \x97 fine\x85\n").unwrap();
    let parts = ["rt.txt, line 2: byte 8 of the file, 0x92, is not UTF-8", "Windows1252"];
    refused(LabelledTexts::lines([("pos", &path)], &options()), DataFault::Unsupported, &parts);
    refused(
        LabelledTexts::tab_separated(&path, [0, 1], &options()),
        DataFault::Unsupported,
        &parts,
    );
    refused(LabelledTexts::folder(dir.path(), &options()), DataFault::Unsupported, &parts);
    let options = TextOptions { encoding: TextEncoding::Windows1252, ..options() };
    let read = LabelledTexts::lines([("pos", &path)], &options).unwrap();
    assert_eq!(read.texts().collect::<Vec<_>>(), ["plain", "it’s café — fine…"]);
}

#[test]
fn missing_texts_columns_and_classes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.tsv");
    let table = |content: &str| {
        fs::write(&path, content).unwrap();
        LabelledTexts::tab_separated(&path, [0, 1], &options())
    };
    refused(
        table("a\tx\nb\n"),
        DataFault::Corrupt,
        &["t.tsv, line 2: 1 column(s)", "2 are needed"],
    );
    refused(table("a\tx\n \ty\n"), DataFault::Corrupt, &["t.tsv, line 2: no name of a class"]);
    refused(table("\n"), DataFault::Missing, &["t.tsv: no texts"]);
    refused(
        LabelledTexts::lines([("a", &path)], &options()),
        DataFault::Missing,
        &["t.tsv: no texts"],
    );

    let root = dir.path().join("root");
    fs::create_dir_all(root.join("empty")).unwrap();
    fs::create_dir_all(root.join("full")).unwrap();
    fs::write(root.join("full/1"), "text").unwrap();
    let parts = ["root/empty: no texts in the folder of this class"];
    refused(LabelledTexts::folder(&root, &options()), DataFault::Missing, &parts);
    fs::write(root.join("empty/1"), "text").unwrap();
    fs::create_dir(root.join("full/deep")).unwrap();
    let parts = ["root/full/deep: a folder within"];
    refused(LabelledTexts::folder(&root, &options()), DataFault::Unsupported, &parts);
    refused(
        LabelledTexts::folder(root.join("empty"), &options()),
        DataFault::Missing,
        &["no folders"],
    );
}

#[test]
fn a_split_has_each_text_once_and_depends_on_the_seed_alone() {
    let dir = tempfile::tempdir().unwrap();
    let lines: String = (0..50).map(|line| format!("text {line}\n")).collect();
    let all = of_lines(dir.path(), &[("a", &lines), ("b", &lines.replace("text", "other"))]);
    let (train, test) = all.split(0.1, 3).unwrap();
    assert_eq!((train.len(), test.len()), (90, 10));
    let mut both: Vec<_> = texts(&train);
    both.extend(texts(&test));
    both.sort_unstable();
    let mut expected = texts(&all);
    expected.sort_unstable();
    assert_eq!(both, expected);
    let again =
        |seed| all.split(0.1, seed).unwrap().1.texts().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(again(3), test.texts().collect::<Vec<_>>());
    assert_ne!(again(3), again(4));
    assert!(
        all.split(0.001, 0).unwrap_err().to_string().contains("leaves one of both parts empty")
    );
}

#[test]
fn texts_are_cut_at_a_quantile_and_filled_up_with_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let of = of_lines(dir.path(), &[("a", "b\nb c\nb c d\n^_^ * *\nb c d e f g h i\n")]);
    // 1, 2, 3, 5 and 8 words.
    let lengths = [0.2, 0.21, 0.6, 0.8, 1.0].map(|share| of.words_at(share).unwrap());
    assert_eq!(lengths, [1, 2, 3, 5, 8]);
    assert!(of.words_at(0.0).is_err() && of.words_at(1.5).is_err());
    let vocabulary = Vocabulary::words(["b b b b c c c d d e f g h"], 1, 5); // b c d e f
    let data = of.padded(&vocabulary, 5).unwrap();
    let batch = read(&data, &[0, 2, 4]);
    assert_eq!(rows(&batch.xs), [[2, 0, 0, 0, 0], [2, 3, 4, 0, 0], [2, 3, 4, 5, 6]]);
    assert_eq!((data.left_out(), data.shape(), data.length(2)), (3, vec![5], 3));
    // A model knows the lengths from its inputs.
    let lengths =
        batch.xs.ne(Vocabulary::PADDING).unwrap().to_dtype(candle_core::DType::U32).unwrap();
    assert_eq!(lengths.sum(1).unwrap().to_vec1::<u32>().unwrap(), [1, 3, 5]);
    assert_eq!(rows(&read(&data, &[3]).xs), [[1; 5]], "unknown words are no padding");
    assert_eq!(read(&data, &[]).xs.dims(), [0, 5]);
    assert!(matches!(
        data.read(&[5], &Pass::evaluation()),
        Err(Error::NoSuchSample { sample: 5, len: 5 })
    ));
    let text = of.padded(&Vocabulary::bytes(), 5).unwrap_err().to_string();
    assert!(text.contains("Vocabulary::words"), "{text}");
    assert!(of.padded(&vocabulary, 0).is_err());
}

#[test]
fn documents_are_sentences_of_words() {
    let dir = tempfile::tempdir().unwrap();
    let of = of_lines(
        dir.path(),
        &[("a", "One two. Three four five six! Seven\nTwo.\n"), ("b", "Six? Five four.\n")],
    );
    // 3, 1 and 2 sentences; 3, 5, 1, 2, 2 and 3 words.
    assert_eq!(of.sentences_at(1.0).unwrap(), [3, 5]);
    assert_eq!(of.sentences_at(0.67).unwrap(), [3, 3]);
    assert_eq!(of.sentences_at(0.5).unwrap(), [2, 2]);
    let vocabulary = Vocabulary::words([". . . one two three four five six seven ? !"], 1, 99);
    let token = |word: &str| vocabulary.encode(word).unwrap()[0];
    let data = of.documents(&vocabulary, [2, 4]).unwrap();
    let batch = read(&data, &[0, 1, 2]);
    let [one, two, three, four, five, six] =
        ["one", "two", "three", "four", "five", "six"].map(token);
    let (stop, asks) = (token("."), token("?"));
    assert_eq!(
        batch.xs.to_vec3::<u32>().unwrap(),
        [
            [[one, two, stop, 0], [three, four, five, six]],
            [[two, stop, 0, 0], [0; 4]],
            [[six, asks, 0, 0], [five, four, stop, 0]],
        ]
    );
    assert_eq!(batch.ys.to_vec1::<u32>().unwrap(), [0, 0, 1]);
    assert_eq!((data.shape(), data.length(1), data.left_out()), (vec![2, 4], 1, 2));
    assert_eq!(read(&data, &[]).xs.dims(), [0, 2, 4]);
    let narrow = data.bucketed(3).unwrap();
    assert_eq!((narrow.buckets(), narrow.shape()), (vec![(1, 1), (2, 2)], vec![2, 4]));
    assert_eq!(read(&narrow, &[0]).xs.dims(), [1, 1, 4]);
}

/// 60 texts of 1 to 30 words; the first word of each is its own.
fn many(dir: &Path) -> PaddedTexts {
    let line = |line: usize| format!("text{line} {}\n", "w ".repeat(line * 7 % 30));
    let texts = of_lines(dir, &[("a", &(0..60).map(line).collect::<String>())]);
    texts.padded(&Vocabulary::words(texts.texts(), 1, 99), 25).unwrap()
}

#[test]
fn buckets_have_like_lengths_and_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, data) = (many(dir.path()), many(dir.path()).bucketed(4).unwrap());
    let buckets = data.buckets();
    assert_eq!(buckets.len(), 4);
    assert!(buckets.iter().all(|(len, _)| (10..20).contains(len)), "{buckets:?}");
    assert!(buckets.windows(2).all(|pair| pair[0].1 < pair[1].1), "{buckets:?}");
    assert_eq!(data.shards(), buckets.iter().map(|(len, _)| *len).collect::<Vec<_>>());
    let mut first = 0;
    for (len, width) in buckets {
        let all: Vec<u32> = (first..first + len as u32).collect();
        let batch = read(&data, &all);
        assert_eq!(batch.xs.dims(), [len, width]);
        let filled = rows(&batch.xs).iter().filter(|row| row[width - 1] != 0).count();
        assert!(filled >= 1, "no bucket is wider than its longest text");
        first += len as u32;
    }
    let of = |data: &PaddedTexts| {
        let all: Vec<u32> = (0..60).collect();
        let mut rows = rows(&read(data, &all).xs);
        rows.sort_unstable();
        rows
    };
    assert_eq!(of(&plain), of(&data));
    assert_ne!(plain.fingerprint().unwrap(), data.fingerprint().unwrap());
    assert_eq!(
        data.fingerprint().unwrap(),
        many(dir.path()).bucketed(4).unwrap().fingerprint().unwrap()
    );
    assert!(plain.bucketed(0).is_err());
    assert_eq!(plain.bucketed(1000).unwrap().shards().iter().sum::<usize>(), 60);
}

#[test]
fn global_batches_of_a_bucket_do_not_depend_on_the_number_of_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let data = Arc::new(many(dir.path()).bucketed(3).unwrap());
    let epoch = |ranks: usize, rank: usize| -> Vec<Batch> {
        let config = SamplerConfig {
            len: data.len(),
            global_rank: rank,
            world_size: ranks,
            batch_size: 6 / ranks,
            seed: 1,
            shuffle: true,
            remainder: Remainder::Drop,
        };
        let sampler = DistributedSampler::new(config).unwrap().with_shuffle(Shuffle::WithinShards);
        let loader = Loader::new(Arc::clone(&data), sampler, LoaderOptions::default()).unwrap();
        loader.epoch(2, 0).unwrap().collect::<Result<_>>().unwrap()
    };
    let alone = epoch(1, 0);
    assert_eq!(alone.len(), 10);
    let whole: usize = data.shards().iter().map(|len| len / 6).sum();
    for ranks in [2, 3] {
        let batches: Vec<Vec<Batch>> = (0..ranks).map(|rank| epoch(ranks, rank)).collect();
        for (step, expected) in alone.iter().enumerate() {
            let of_ranks: Vec<&Tensor> = batches.iter().map(|steps| &steps[step].xs).collect();
            if step < whole {
                // All are of one bucket, and as wide.
                let together = Tensor::cat(&of_ranks, 0).unwrap();
                assert_eq!(rows(&together), rows(&expected.xs), "step {step}");
            } else {
                let words: Vec<u32> =
                    of_ranks.iter().flat_map(|xs| rows(xs)).map(|row| row[0]).collect();
                let expected: Vec<u32> = rows(&expected.xs).iter().map(|row| row[0]).collect();
                assert_eq!(words, expected, "step {step}");
            }
        }
    }
}
