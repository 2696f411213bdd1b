//! Threads of a rank that answer other ranks' messages until all ranks have said goodbye.
//!
//! A rank whose program has ended must still answer the others. So the last thing that a [`World`](crate::World) does is
//! to wait for these threads. Before that it leaves all groups, also those of which an optimizer still has a handle. So a
//! rank that waits for this one in a collective fails, and with that rank the messages.

use std::fmt;
use std::thread::JoinHandle;

use parking_lot::Mutex;

/// A thread that answers messages.
pub(crate) struct Service {
    /// Says goodbye to the other ranks, once.
    pub(crate) close: Box<dyn Fn() + Send>,
    pub(crate) thread: JoinHandle<()>,
}

/// The services of a rank. `None` once the rank has left.
pub struct Services(Mutex<Option<Vec<Service>>>);

impl Default for Services {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl Services {
    /// Adds a service, unless the rank has left.
    pub(crate) fn add(&self, service: Service) {
        if let Some(services) = &mut *self.0.lock() {
            services.retain(|service| !service.thread.is_finished());
            services.push(service);
        }
    }

    /// Ends the services, and waits for the last goodbye of the other ranks, or for the news of a failure. Before such a
    /// wait it calls `retire`.
    pub(crate) fn end(&self, retire: impl FnOnce()) {
        let mut services = self.0.lock().take().unwrap_or_default();
        services.retain(|service| !service.thread.is_finished());
        if !services.is_empty() {
            retire();
        }
        services.iter().for_each(|service| (service.close)());
        for Service { thread, .. } in services {
            // A panic of the thread has been answered where it mattered.
            drop(thread.join());
        }
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Services")
    }
}
