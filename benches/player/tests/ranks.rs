//! The program as a benchmark starts it: processes that find each other by torchrun's variables, with
//! requests on the first one's standard input.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

/// The output of each rank.
fn play(ranks: usize, args: &str, input: &str) -> Vec<Output> {
    play_with_servers(ranks, 0, args, input)
}

/// The output of each rank, of which the last ones are servers of a key-value store.
fn play_with_servers(ranks: usize, servers: usize, args: &str, input: &str) -> Vec<Output> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
    let start = |rank: usize| -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bench-player"));
        command.args(args.split(' ')).env("CANDELABRUM_TIMEOUT", "60");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.port().to_string());
        let variables = [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", ranks)];
        command.envs(variables.map(|(name, value)| (name, value.to_string())));
        command.env("CANDELABRUM_SERVERS", servers.to_string()).env_remove("MNIST_DIR");
        command.env("LOCAL_WORLD_SIZE", ranks.to_string()).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let mut children: Vec<Child> = (0..ranks).map(start).collect();
    let mut requests = children[0].stdin.take().expect("it is a pipe");
    requests.write_all(input.as_bytes()).expect("it reads");
    drop(requests);
    children.into_iter().map(|child| child.wait_with_output().expect("it ends")).collect()
}

/// The lines of rank 0, of ranks that succeed.
fn play_well(ranks: usize, args: &str, input: &str) -> Vec<Value> {
    lines(&play(ranks, args, input))
}

fn lines(outputs: &[Output]) -> Vec<Value> {
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    let lines = String::from_utf8_lossy(&outputs[0].stdout);
    lines.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
}

const TRAIN: &str =
    "train --contender ours --network gru --batch-size 4 --threads 1 --warm-up 3 --strategy";

#[test]
fn strangers_train_as_a_world_of_one() {
    let (request, alone) = ("{\"steps\":2}\n", format!("{TRAIN} sparseTopK"));
    let single = play_well(1, &alone, request);
    let strangers = play_well(2, &format!("{alone} --strangers"), request);
    let together = play_well(2, &alone, request);
    for (line, name) in [(0, "warm_up_losses"), (1, "loss"), (1, "residual_norm")] {
        assert_eq!(strangers[line][name], single[line][name]);
        assert_ne!(together[line][name], single[line][name]);
    }
    assert_eq!([&single[0]["backend"], &strangers[0]["backend"]], ["single", "local"]);
    let bytes = |lines: &[Value]| lines[1]["bytes_sent_per_step"].as_f64().expect("a number");
    assert!(bytes(&strangers) == 0.0 && bytes(&together) > 0.0);
}

#[test]
fn a_request_that_is_not_understood_ends_all_ranks() {
    let request = r#"{"second":1}"#;
    let outputs = play(2, &format!("{TRAIN} fp32"), &format!("{request}\n"));
    assert!(outputs.iter().all(|output| output.status.code() == Some(1)), "{outputs:?}");
    let error = String::from_utf8_lossy(&outputs[0].stderr);
    assert!(error.starts_with(&format!("error: asked for `{request}`: ")), "{error}");
}

#[test]
fn every_way_of_overlap_is_measured() {
    let ways = ["off", "on", "exchange", "alone"];
    let requests = ways.map(|way| format!("{{\"way\":\"{way}\",\"seconds\":0}}\n")).concat();
    let lines = play_well(2, "overlap --network cnn --batch-size 3 --warm-up 1", &requests);
    assert_eq!(lines[0]["gradient_bytes"], json!(4 * 431_080));
    for (way, line) in ways.iter().zip(&lines[1..]) {
        assert!(line["step_seconds"].as_f64() > Some(0.0), "{line}");
        let forward = line.get("forward_seconds").and_then(Value::as_f64);
        assert_eq!(forward > Some(0.0), *way != "exchange", "{line}");
    }
}

#[test]
fn two_ranks_reduce_and_are_right() {
    let requests = "{\"elements\":1000,\"seconds\":0}\n{\"seconds\":0.01,\"elements\":30}\n";
    for numbers in ["segment", "slice", "alone"] {
        for line in &play_well(2, &format!("allreduce --numbers {numbers}"), requests)[1..3] {
            assert!(
                line["seconds"].as_f64() > Some(0.0) && line["correct"] == json!(true),
                "{line}"
            );
            // How many fit in the time depends on the machine.
            assert!(line["operations"].as_u64() > Some(0), "{line}");
        }
    }
    let large =
        &play_well(1, "allreduce --numbers alone", "{\"elements\":16777216,\"seconds\":0}")[1];
    assert_eq!((&large["operations"], &large["batches"]), (&json!(1), &json!(3)));
}

#[test]
fn candle_is_one_rank_and_ours_has_a_profile() {
    let candle = TRAIN.replace("ours", "candle").replace(" --strategy", "");
    let lines = play_well(1, &candle, "{\"seconds\":0}\n");
    assert_eq!((&lines[0]["ranks"], &lines[0]["backend"]), (&json!(1), &json!("single")));
    assert!(lines[1].get("forward_seconds").is_none() && lines[1]["steps"].is_number());
    let profile = &play(1, &format!("{TRAIN} fp32 --profile 0"), "")[0];
    let table = String::from_utf8_lossy(&profile.stdout);
    let is_known = |part: &&str| table.lines().any(|line| line.starts_with(part));
    let parts = ["linear", "gru", "exchange", "optimizer", "rest"];
    assert!(profile.status.success() && parts.iter().all(is_known), "{profile:?}");
}

#[test]
fn every_exchange_of_parameters_is_right() {
    let ask = |exchange: &str, more: &str| {
        format!("{{\"exchange\":\"{exchange}\",{more}\"seconds\":0}}\n")
    };
    let bytes = 4.0 * 11_689_512.0; // torchvision's resnet18 in f32
    let settings = ["", "\"optimizer\":true,", "\"compression\":\"fp16\","];
    let two_bit = ask("dist_sync", "\"compression\":\"2bit\",") + &ask("dist_async", "");
    let requests = settings.map(|more| ask("dist_sync", more)).concat() + &two_bit;
    let store = lines(&play_with_servers(4, 2, "transfer", &requests));
    assert_eq!((&store[0]["parameters"], &store[0]["ranks"]), (&json!(62), &json!(4)));
    for (line, share, is_known) in
        [(1, 1.0, true), (2, 1.0, false), (3, 0.5, true), (4, 0.0625, false), (5, 1.0, false)]
    {
        let line = &store[line];
        let figure = |name: &str| line[name].as_f64().expect("a number");
        assert_eq!(line.get("correct"), is_known.then_some(&json!(true)), "{line}");
        let headers = 64.0 * 3.0 * 62.0;
        for (name, share) in [("bytes_sent_per_round", share), ("bytes_received_per_round", 1.0)] {
            assert!((figure(name) - share * bytes).abs() <= headers, "{name}: {line}");
        }
        assert!(figure("speed") > 0.0 && figure("round_seconds") > 0.0, "{line}");
    }
    let others = ["all_reduce", "memory"].map(|exchange| ask(exchange, "")).concat();
    for line in &play_well(2, "transfer", &others)[1..3] {
        assert_eq!(line["correct"], json!(true));
    }
}

#[test]
fn a_straggler_delays_rounds_and_not_dist_async() {
    let ask = |exchange: &str, bound: &str, slow: f64| {
        format!("{{\"exchange\":\"{exchange}\",{bound}\"slow\":{slow},\"seconds\":1}}\n")
    };
    let (sync, unbounded) = (ask("dist_sync", "", 6.0), ask("dist_async", "", 6.0));
    let bounded = |slow| ask("dist_async", "\"bound\":2,", slow);
    let requests = [sync, unbounded, bounded(6.0), bounded(1.0)].concat();
    let samples = lines(&play_with_servers(3, 1, "straggler --batch-size 8 --lr 0.01", &requests));
    assert_eq!(samples[0]["dataset"], json!("synthetic digits"));
    let figure = |line: usize, name: &str| samples[line][name].as_f64().expect("a number");
    let steps = |line| [0, 1].map(|worker| figure(line, &format!("steps_of_worker_{worker}")));
    assert_eq!((steps(1)[0], figure(1, "max_staleness")), (steps(1)[1], 0.0));
    assert!(steps(2)[0] > steps(2)[1], "{}", samples[2]);
    assert!(figure(2, "max_lead") > 2.0 && figure(2, "max_staleness") > 0.0, "{}", samples[2]);
    for line in [3, 4] {
        let [first, second] = steps(line);
        // Each stops by its own clock, and the steps of the warm-up are not counted.
        assert!((first - second).abs() <= 2.0 + 5.0, "{}", samples[line]);
        assert!(figure(line, "max_lead") <= 2.0, "{}", samples[line]);
        assert!((0.0..=1.0).contains(&figure(line, "accuracy")), "{}", samples[line]);
    }
    let all_reduce = &play_well(2, "straggler --batch-size 8", &ask("all_reduce", "", 1.0))[1];
    let steps = ["steps_of_worker_0", "steps_of_worker_1"].map(|name| all_reduce[name].as_f64());
    assert!(steps[0] == steps[1] && steps[0] > Some(0.0), "{all_reduce}");
    assert!(all_reduce.get("max_lead").is_none(), "{all_reduce}");
}
