//! Chunks of views that are at hand, as [`super::quick`] answers them.

use bytes::Bytes;
use futures_util::FutureExt;

use super::Mount;
use super::quick::{Asked, Begun, Content, Reply, Said};
use super::recent::{self, Seen};
use super::target::{Target, View};
use crate::container::Access;
use crate::metrics::Lookup;
use crate::store::Meta;
use crate::view::{self, Found, Sent};

/// What most chunks are.
const OCTETS: &str = "application/octet-stream";

/// A chunk of a view, where resolving and reading it needs no waiting; everything else is the library's, and nothing has
/// begun that it would begin again.
pub(super) fn answer(begun: &Begun<'_>, asked: &Asked<'_>, access: Access) -> Option<Reply> {
    let app = begun.app;
    // A query is the library's, and so is whatever it may take for something else.
    if !asked.path.bytes().all(Target::is_plain) {
        return None;
    }
    let access = access.at_hand();
    let target = Target::parse(asked.path, &app.options.base_path).ok()??;
    let View::Other(view) = target.view else { return None };
    let (parameters, path) = target.segments.split_at_checked(view.parameters())?;
    if target.trailing_slash || !target.is_numbered() || !view.accepts(parameters) {
        return None;
    }
    let (mount, key) = app.locate(path).ok()??;
    if !mount.container.is_at_hand() {
        return None;
    }
    let at = app.mounts.iter().position(|one| std::ptr::eq(one, mount))?;
    let template = app.quick.mounts.get(at).filter(|template| template.is_open)?;
    let lookup = view::Lookup { container: &mount.container, access, parameters, key: &key, query: &[] };
    let Found::Chunk(chunk) = view.resolve(&lookup).now_or_never()?.ok()? else { return None };
    if chunk.media_type() != OCTETS {
        return None;
    }
    let ready = match chunk.sent(&mount.container, access).now_or_never()?.ok()? {
        Some(Sent::Whole(ready)) => ready,
        Some(Sent::Pieces(_)) => return None,
        None => {
            mount.container.count(Lookup::Absent);
            return Some(begun.missing(asked, template, view.name()));
        }
    };
    mount.container.count(Lookup::Hit);
    let facts = Meta { len: ready.bytes.len() as u64, modified: None, etag: ready.etag.as_str().into(), version: 0 };
    let mut said = Said::new(facts, false);
    said.route = view.name();
    let body = Content::Bytes(begun.counted(asked, mount, ready.bytes.clone())?);
    let reply = begun.object(asked, template, &said, body);
    if view.is_local()
        && let Some(trail) = chunk.trail(&mount.container, access, &key, ready)
    {
        recent::keep(app, asked.path, Seen { mount: at, said: Some(said), trail });
    }
    Some(reply)
}

/// Bodies from this length on count as memory of those that they are sent to.
const COUNTED_BYTES: usize = 64 << 10;

impl Begun<'_> {
    /// `bytes` of a container, which count as the client's as long as they are sent; `None` where the library has to wait for that,
    /// or to find out whose they are.
    pub(super) fn counted(&self, asked: &Asked<'_>, mount: &Mount, bytes: Bytes) -> Option<Bytes> {
        if asked.is_head {
            return Some(Bytes::new());
        }
        // The kernel takes less at once.
        if bytes.len() < COUNTED_BYTES {
            return Some(bytes);
        }
        let client = self.app.clients.of_address(self.peer)?;
        mount.container.sent(client, &bytes)
    }
}
