//! What a process of a test tells a log.

use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

struct Print;

impl<S: Subscriber> Layer<S> for Print {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        eprintln!("{} {event:?}", event.metadata().level());
    }
}

/// Prints the events of this process on stderr from now on, each with its level in front.
pub(crate) fn print() {
    let subscriber = tracing_subscriber::registry().with(Print);
    tracing::subscriber::set_global_default(subscriber).unwrap();
}
