//! The part of TensorBoard's messages that scalars need (`event.proto` and `summary.proto` of
//! TensorFlow, `tensorflow.Event`). A field's number is its identity in the file.

/// An event of the file.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct EventMessage {
    /// Unix time in seconds.
    #[prost(double, tag = "1")]
    pub(super) wall_time: f64,
    #[prost(int64, tag = "2")]
    pub(super) step: i64,
    #[prost(oneof = "EventContent", tags = "3, 5, 7")]
    pub(super) what: Option<EventContent>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum EventContent {
    /// The first event of each file.
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(ScalarSummary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

/// Scalars of one step.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ScalarSummary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    /// Optional, because the zero must be written too.
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

impl ScalarSummary {
    pub(super) fn new(scalars: impl Iterator<Item = (String, f32)>) -> Self {
        let scalar = |(tag, value)| Scalar { tag, simple_value: Some(value) };
        Self { value: scalars.map(scalar).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.value.is_empty()
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

impl SessionLog {
    /// The status `START`.
    pub(super) fn started() -> Self {
        Self { status: 1 }
    }
}
