//! The examples of pretrained models, on the tiny folders of the tests of `candelabrum-transformers`.

use std::fs;
use std::path::{Path, PathBuf};

use candelabrum_testkit::{kill, until};
use rustix::process::Signal;
use serde_json::json;

use crate::run::{example, output_of, refuse};
use crate::whole_runs::{last, report_of, runs_and_continues};

fn tiny(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("crates/candelabrum-transformers/tests/tiny").join(name)
}

#[test]
fn a_pretrained_language_model_learns_a_text_and_is_saved_as_adapters() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (model, text, saved) = (tiny("llama-gguf/model.gguf"), path("text"), path("saved"));
    fs::write(&text, "the rat ate the malt that lay in the house that a cat is in and ".repeat(30))
        .unwrap();
    let model = format!("--model {}", model.display());
    let options = format!("{model} --text {text} --length 8 --lr 0.01");
    for report in runs_and_continues("finetune_llm", &options, 3) {
        let first = report["epochs"][0]["eval_loss"].as_f64().unwrap();
        assert!(last(&report, "/eval_loss") < first - 0.05, "{report}");
        assert!(last(&report, "/measures/evaluation~1perplexity") > 1.0, "{report}");
    }
    let more = format!("--quantized --save {saved} --workers 2");
    let output = output_of("finetune_llm", &format!("{options} {more}"));
    assert!(output.contains("saved in "), "{output}");
    let config = fs::read_to_string(dir.path().join("saved/adapter_config.json")).unwrap();
    assert!(config.contains("q_proj") && config.contains("\"r\": 8"), "{config}");
    let adapters = format!("--adapters {saved}");
    let [plain, tuned, again] = ["", &adapters, ""].map(|own| {
        let program = example("generate").args(["--prompt", "the cat"]);
        let options = format!("{model} --tokens 5 {own}");
        program.args(options.split_whitespace()).run().success().out
    });
    assert!(plain.starts_with("the cat") && tuned.starts_with("the cat"), "{plain}, {tuned}");
    assert_ne!(plain, tuned);
    assert_eq!(again, plain);
    let adapters_alone = example("generate").args(["--model", &saved, "--prompt", "a"]).run();
    assert_ne!(adapters_alone.says(["has adapters and no model"]).code, Some(0));
    let whole = path("whole");
    output_of("finetune_llm", &format!("{options} --rank 0 --epochs 1 --save {whole}"));
    let whole = format!("--model {whole} --text {text}");
    output_of("finetune_llm", &format!("{whole} --length 8 --epochs 1"));

    let cases: [(&str, &[&str]); 4] = [
        (&format!("--model no-such-folder --text {text}"), &["no-such-folder"]),
        (&format!("{whole} --quantized"), &["--quantized needs a GGUF file"]),
        (&format!("{model} --text /no/such/text --workers 2"), &["/no/such/text"]),
        (&format!("{model} --text {text} --chat"), &[&text, "line 1"]),
    ];
    for (options, parts) in cases {
        refuse("finetune_llm", options, parts);
    }
}

/// A model that is half trained must not take the place of a trained one.
#[test]
fn a_run_that_a_signal_ends_saves_no_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (model, text, saved) = (tiny("llama-gguf/model.gguf"), path("text"), path("saved"));
    fs::write(&text, "the cat is in the house ".repeat(30)).unwrap();
    let (model, runs) = (model.display(), path("runs"));
    let options = format!("--model {model} --text {text} --length 8 --save {saved} --workers 2");
    let more = format!("--checkpoint-dir {runs} --checkpoint-every 5 --epochs 100000 --threads 1");
    let program = example("finetune_llm").args(options.split(' ')).args(more.split(' '));
    let running = program.start();
    until("a checkpoint", || {
        let has_one = fs::read_dir(&runs).is_ok_and(|mut entries| entries.next().is_some());
        has_one.then_some(())
    });
    kill(running.ranks(2)[0], Signal::INT);
    running.finish().says(["interrupted by SIGINT"]);
    assert!(!Path::new(&saved).exists());
}

/// A folder with a tiny BERT and a tokenizer of words.
fn bert(folder: &Path) {
    fs::create_dir(folder).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(tiny("bert").join(file), folder.join(file)).unwrap();
    }
    let words = "[PAD] [UNK] [CLS] [SEP] the film is fine dull moving flat a an end";
    let vocabulary: serde_json::Map<_, _> =
        words.split(' ').zip(0..).map(|(word, id)| (word.to_owned(), json!(id))).collect();
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false})
    };
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [special(0, "[PAD]"), special(1, "[UNK]"), special(2, "[CLS]"), special(3, "[SEP]")],
        "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let config = json!({"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"});
    fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
}

/// A training whose blocks are computed again, of one and two ranks, with dropout and with adapters, leaves the
/// parameters of a training without that.
#[test]
fn blocks_that_are_computed_again_leave_the_same_parameters() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    bert(&dir.path().join("bert"));
    let text = "the film is fine\na moving film\nan end is dull\n".repeat(10);
    fs::write(path("text"), text).unwrap();
    let (bert, text) = (path("bert"), path("text"));
    let gguf = tiny("llama-gguf/model.gguf");
    let classes = format!("--class one={text} --class two={text}");
    let classifier = format!("--model {bert} {classes} --batch-size 4");
    let adapters = format!("--model {} --text {text} --length 8", gguf.display());
    for (name, options, precision) in [
        ("finetune_classifier", &classifier, "f32"),
        ("finetune_llm", &adapters, "f32"),
        ("finetune_llm", &adapters, "bf16"),
    ] {
        let options = format!("{options} --workers 2 --epochs 1 --threads 1");
        let parameters = |recompute: &str| {
            let options = format!("{options} --precision {precision} --recompute {recompute}");
            report_of(name, &options)["parameters_sha256"].clone()
        };
        let expected = parameters("none");
        assert_eq!(expected.as_array().map(Vec::len), Some(2));
        assert_eq!(parameters("half"), expected, "{name}");
        assert_eq!(parameters("all"), expected, "{name}");
    }
    let refused = ["--recompute is all", "this program's model has no"];
    refuse("mnist_dist", "--dataset synthetic --recompute all", &refused);
}

#[test]
fn a_pretrained_encoder_learns_classes_and_finds_sentences() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    bert(&dir.path().join("bert"));
    fs::write(path("good"), "the film is fine\na moving film\nan end is fine\n".repeat(20))
        .unwrap();
    fs::write(path("bad"), "the film is dull\na flat film\nthe end is dull\n".repeat(20)).unwrap();
    let (model, saved) = (path("bert"), path("saved"));
    let [good, bad] = ["good", "bad"].map(|class| format!("{class}={}", path(class)));
    let classes = format!("--class {good} --class {bad}");
    let options = format!("--model {model} {classes} --lr 0.003 --batch-size 4");
    for report in runs_and_continues("finetune_classifier", &options, 6) {
        assert!(last(&report, "/eval_accuracy") > 0.9, "{report}");
    }
    let tests = format!("--test {good} --test {bad} --save {saved}");
    let output = output_of("finetune_classifier", &format!("{options} {tests}"));
    assert!(output.contains("120 training and 120 test texts"), "{output}");
    let unknown = format!("{options} --test fine={}", path("good"));
    refuse("finetune_classifier", &unknown, &["fine", "not one of the 2 that are known"]);
    assert!(output.contains("new: classifier.weight, classifier.bias"), "{output}");
    let find =
        ["--model", &saved, "--texts", &path("good"), "--query", "a moving film", "--top", "1"];
    assert_eq!(
        example("embed").args(find).run().success().out,
        "a moving film\n  1.000  a moving film\n"
    );
    let rows = output_of("embed", &format!("--model {saved} --texts {}", path("good")));
    assert_eq!(rows.lines().count(), 60);
}
