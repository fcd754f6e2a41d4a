//! The door: who asks, whether they may read what they ask for, and what is said if not.
//!
//! The decision is made from the request's text alone, before the store is looked at, so that no answer, and no time that an
//! answer takes, tells whether something exists that the caller may not read. What a request reads besides its own path
//! (attributes around it, entries, levels of pyramids) is decided by [`Viewpoint`], key by key, where it is read.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, HeaderMap, LOCATION, VARY};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response, StatusCode};

use super::credentials::Presented;
use super::observe::shown;
use super::problem::{self, Problem};
use super::target::{self, Operation, Target, View};
use super::{App, Mount, forwarded, turns};
use crate::access::{Caller, Control, Decision, Rejection};
use crate::container::{ATTRIBUTES, Sight};
use crate::metrics;
use crate::store::Key;

/// What a caller sees of a mount.
#[derive(Debug)]
pub(super) struct Viewpoint {
    control: Arc<Control>,
    /// Name of the mount; empty for the root's.
    mount: String,
    caller: Option<Caller>,
    /// Whether something was asked for that others may see otherwise.
    depends: AtomicBool,
}

impl Viewpoint {
    fn learn(&self, decision: Decision) -> bool {
        if decision != Decision::Public {
            self.depends.store(true, Ordering::Relaxed);
        }
        decision != Decision::Refused
    }

    /// Who asks, as the log names them.
    pub(super) fn caller(&self) -> Option<String> {
        self.caller.as_ref().map(ToString::to_string)
    }

    fn path(&self, key: &Key) -> String {
        let parts = [self.mount.as_str(), key.as_str()].into_iter().filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join("/")
    }

    fn may_read(&self, path: &str) -> bool {
        self.learn(self.control.policy().decide(path, self.caller.as_ref()))
    }

    /// Whether the mount of that name is shown among the others.
    pub(super) fn shows(&self, mount: &str) -> bool {
        self.may_read(mount)
    }

    /// Says in the headers of an answer for whom it is good.
    pub(super) fn mark(&self, headers: &mut HeaderMap) {
        if self.depends.load(Ordering::Relaxed) {
            headers.append(VARY, HeaderValue::from_static("authorization"));
            keep_private(headers);
        }
    }
}

impl Sight for Viewpoint {
    fn sees(&self, key: &Key) -> bool {
        self.may_read(&self.path(key))
    }

    fn sees_below(&self, key: &Key) -> bool {
        self.learn(self.control.policy().decide_below(&self.path(key), self.caller.as_ref()))
    }
}

/// No shared cache may keep the answer; the client's own may, as long as before.
pub(super) fn keep_private(headers: &mut HeaderMap) {
    let policy = headers.get(CACHE_CONTROL).and_then(|policy| policy.to_str().ok()).unwrap_or("no-cache");
    if policy.split(',').any(|word| word.trim() == "no-store") {
        return;
    }
    let words = policy.split(',').map(str::trim).filter(|word| !["public", "private", ""].contains(word));
    let text = std::iter::once("private").chain(words).collect::<Vec<_>>().join(", ");
    headers
        .insert(CACHE_CONTROL, HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("private, no-store")));
}

/// Whether everybody may read everything of a mount: then nothing is asked, and the lane may answer.
pub(super) fn is_open(control: Option<&Control>, mount: &str) -> bool {
    control.is_none_or(|control| control.policy().decide_below(mount, None) == Decision::Public)
}

/// A redirect to the root of a token's path, whose relative links need the slash.
pub(super) fn slash(presented: &Presented) -> Option<Response<Body>> {
    let token = presented.in_url()?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    let headers = response.headers_mut();
    headers.insert(LOCATION, HeaderValue::from_str(&format!("{}/", target::encode(token))).ok()?);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Some(response)
}

/// A request at the door.
pub(super) struct Asking<'a> {
    pub(super) app: &'a App,
    pub(super) parts: &'a Parts,
    pub(super) target: &'a Target,
    pub(super) presented: &'a Presented,
    pub(super) peer: Option<IpAddr>,
    pub(super) id: &'a str,
}

impl Asking<'_> {
    /// Lets the request in, with what its caller sees; `None` for what everybody sees.
    ///
    /// # Errors
    /// 400 for several tokens, 401 for none where one is needed and for one that tells nobody, 404 for somebody who may not
    /// read what is asked for, 503 where that cannot be known now.
    pub(super) async fn admit(&self, control: &Arc<Control>) -> Result<Option<Arc<Viewpoint>>, Problem> {
        let path = match self.target.view {
            View::Operation(Operation::Metrics) if self.target.segments.is_empty() => None,
            // What load balancers ask for, and what holds no data.
            View::Operation(_) | View::Viewer => return Ok(None),
            View::Other(view) => Some(self.target.segments.get(view.parameters()..).unwrap_or_default()),
            View::Stored | View::Slice | View::Info | View::Stats => Some(self.target.segments.as_slice()),
        };
        // `/token/attributes.json`: Neuroglancer looks for attributes all the way up, and gives up where it finds a 401. That is
        // no attempt with a token, and is counted as none.
        if self.presented.is_bare && self.presented.in_url() == Some(ATTRIBUTES) {
            return Err(Problem::missing().uncached());
        }
        let caller = self.caller(control).await?;
        let viewpoint = |mount: &str| Viewpoint {
            control: Arc::clone(control),
            mount: mount.to_owned(),
            caller: caller.clone(),
            depends: AtomicBool::new(false),
        };
        let Some(path) = path else {
            return match control.policy().decide_metrics(caller.as_ref()) {
                Decision::Public => Ok(None),
                Decision::Granted => Ok(Some(Arc::new(viewpoint("")))),
                Decision::Refused => Err(self.refuse(caller.as_ref())),
            };
        };
        let mounts = self.app.mounts();
        let is_alone = matches!(mounts, [only] if only.name.is_empty());
        let mount = if is_alone { "" } else { path.first().map_or("", String::as_str) };
        let viewpoint = viewpoint(mount);
        let may = if is_alone || !path.is_empty() {
            viewpoint.may_read(&path.join("/"))
        } else {
            // The list of the containers is for whoever may read one of them.
            mounts.iter().filter(|mount| viewpoint.may_read(&mount.name)).count() > 0 || mounts.is_empty()
        };
        if !may {
            return Err(self.refuse(viewpoint.caller.as_ref()));
        }
        // What is told of a directory depends on who asks where a rule is about something below it, also where that does
        // not exist: else the headers would tell whether it does.
        if let Some(directory) = self.directory(path) {
            viewpoint.learn(control.policy().decide_below(&directory.join("/"), viewpoint.caller.as_ref()));
        }
        Ok(Some(Arc::new(viewpoint)))
    }

    /// The directory in the container of which an answer may tell more than of one object.
    fn directory<'a>(&self, path: &'a [String]) -> Option<&'a [String]> {
        match self.target.view {
            View::Stored if !self.target.trailing_slash => None,
            // Documents are about the directory that they are in.
            View::Other(_) if !self.target.trailing_slash => path.split_last().map(|(_name, directory)| directory),
            View::Stored | View::Other(_) | View::Slice | View::Info | View::Stats => Some(path),
            View::Viewer | View::Operation(_) => None,
        }
    }

    /// Who asks; a token that is given must be good, also where none is needed.
    async fn caller(&self, control: &Control) -> Result<Option<Caller>, Problem> {
        let Ok(token) = self.presented.token() else {
            self.report("several_tokens", None);
            let detail = "the request has several tokens that differ; give one, once";
            return Err(Problem::new(problem::INVALID_PARAMETER, detail).uncached());
        };
        let Some(token) = token else { return Ok(None) };
        #[expect(clippy::disallowed_methods, reason = "tokens expire by the clock")]
        let now = std::time::SystemTime::now();
        let client = self.app.clients.of(&self.parts.headers, self.peer, None);
        match turns::in_turns(client, client.works(control.caller(token, now))).await {
            Ok(caller) => Ok(Some(caller)),
            Err(Rejection::NoKeys) => {
                self.report(Rejection::NoKeys.name(), None);
                let detail = "whether the token is good cannot be known now; try again";
                Err(Problem::own(problem::ISSUER_UNAVAILABLE, detail, Rejection::NoKeys.to_string()).uncached())
            }
            Err(rejection) => {
                self.report(rejection.name(), None);
                Err(Problem::unauthorized(Some(&rejection.to_string())))
            }
        }
    }

    /// 401 for nobody. For somebody 404, as for what does not exist: clients look for attributes in all groups above a
    /// dataset, and take 404 for "there are none", but 403 for a fault (TensorStore, Java N5).
    fn refuse(&self, caller: Option<&Caller>) -> Problem {
        self.report(if caller.is_some() { "forbidden" } else { "no_token" }, caller);
        if caller.is_some() || self.is_walk() { Problem::missing().uncached() } else { Problem::unauthorized(None) }
    }

    /// Whether attributes are asked for that clients without a token come by on their way up from something that they may
    /// read: below a path with a token, or public. To them 401 is a fault (Neuroglancer), and 404 is "none".
    fn is_walk(&self) -> bool {
        let (name, above) = match self.target.segments.split_last() {
            Some((name, above)) if self.target.view == View::Stored => (name, above),
            _ => return false,
        };
        let control = self.app.options.control.as_ref();
        let is_above_public = || control.is_some_and(|control| control.policy().is_public_below(&above.join("/")));
        name == ATTRIBUTES && !self.target.trailing_slash && (above.is_empty() || is_above_public())
    }

    /// The audit line of a refusal. The path has no token any more.
    fn report(&self, reason: &'static str, caller: Option<&Caller>) {
        metrics::access_refused(reason);
        tracing::warn!(
            id = self.id,
            reason,
            caller = caller.map(tracing::field::display),
            peer = self.peer.map(tracing::field::display),
            forwarded_for = forwarded::client(&self.parts.headers, self.peer, &self.app.options.trusted_proxies)
                .map(tracing::field::display),
            method = %self.parts.method,
            path = shown(self.parts.uri.path()),
            "access refused"
        );
    }
}

/// A mount as somebody sees it.
pub(super) fn seen(mount: &Mount, viewpoint: &Arc<Viewpoint>) -> Mount {
    let sight: Arc<dyn Sight> = Arc::<Viewpoint>::clone(viewpoint);
    Mount { container: mount.container.seen_by(sight), ..mount.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_clients_own_cache_keeps_what_is_private() {
        for (before, after) in [
            ("public, max-age=31536000, immutable", "private, max-age=31536000, immutable"),
            ("no-cache", "private, no-cache"),
            ("no-store", "no-store"),
            ("private, no-cache", "private, no-cache"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CACHE_CONTROL, HeaderValue::from_static(before));
            keep_private(&mut headers);
            assert_eq!(headers[CACHE_CONTROL], after);
        }
        let mut headers = HeaderMap::new();
        keep_private(&mut headers);
        assert_eq!(headers[CACHE_CONTROL], "private, no-cache");
    }
}
