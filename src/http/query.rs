//! Query strings of routes that ignore parameters they do not know.

use percent_encoding::percent_decode_str;

/// The decoded value of the first parameter of that name. `+` stands for itself.
pub(super) fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = query?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    percent_decode_str(value).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

/// All names and values, decoded; `None` for a value that is not UTF-8.
pub(super) fn pairs(query: Option<&str>) -> impl Iterator<Item = (String, Option<String>)> {
    query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(value).decode_utf8().ok().map(std::borrow::Cow::into_owned);
        (percent_decode_str(name).decode_utf8_lossy().into_owned(), value)
    })
}

/// The query string as it may be logged: tokens are secrets.
pub(super) fn without_token(query: &str) -> String {
    let hidden = |pair: &str| {
        let name = pair.split('=').next().unwrap_or_default();
        let name = percent_decode_str(name).decode_utf8_lossy().to_ascii_lowercase();
        name == "token" || name == "access_token"
    };
    let pairs = query.split('&').map(|pair| if hidden(pair) { "token=..." } else { pair });
    pairs.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_name_counts_and_is_decoded() {
        assert_eq!(parameter(Some("a=1&after=x%2Fy&after=z"), "after").as_deref(), Some("x/y"));
        assert_eq!(parameter(Some("after"), "after").as_deref(), Some(""));
        assert_eq!(parameter(Some("b=a+b"), "b").as_deref(), Some("a+b"));
        assert_eq!(parameter(Some("b=%ff"), "b"), None);
        assert_eq!(parameter(None, "b"), None);
    }

    #[test]
    fn a_value_that_is_not_utf_8_is_not_lost() {
        let pairs: Vec<_> = pairs(Some("%61=b%20c&&d=%ff&e")).collect();
        let expected = [("a", Some("b c")), ("d", None), ("e", Some(""))];
        assert_eq!(pairs, expected.map(|(name, value)| (name.to_owned(), value.map(str::to_owned))));
    }

    #[test]
    fn tokens_never_reach_the_log() {
        assert_eq!(without_token("start=0&token=secret&x=1"), "start=0&token=...&x=1");
        assert_eq!(without_token("%74oken=secret"), "token=...");
    }
}
