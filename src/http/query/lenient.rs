//! Query strings of routes that ignore unknown parameters.

use percent_encoding::percent_decode_str;

/// Returns the decoded value of the first parameter of this name. A `+` stands for itself.
pub(crate) fn first_value(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = query?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    percent_decode_str(value).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

/// Returns all names and values, decoded. A value that is not UTF-8 is `None`.
pub(crate) fn pairs(query: Option<&str>) -> impl Iterator<Item = (String, Option<String>)> {
    query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(value).decode_utf8().ok().map(std::borrow::Cow::into_owned);
        (percent_decode_str(name).decode_utf8_lossy().into_owned(), value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_of_a_name_is_returned_decoded() {
        assert_eq!(first_value(Some("a=1&after=x%2Fy&after=z"), "after").as_deref(), Some("x/y"));
        assert_eq!(first_value(Some("after"), "after").as_deref(), Some(""));
        assert_eq!(first_value(Some("b=a+b"), "b").as_deref(), Some("a+b"));
        assert_eq!(first_value(Some("b=%ff"), "b"), None);
        assert_eq!(first_value(None, "b"), None);
    }

    #[test]
    fn a_value_that_is_not_utf_8_is_returned_as_none() {
        let pairs: Vec<_> = pairs(Some("%61=b%20c&&d=%ff&e")).collect();
        let expected = [("a", Some("b c")), ("d", None), ("e", Some(""))];
        assert_eq!(pairs, expected.map(|(name, value)| (name.to_owned(), value.map(str::to_owned))));
    }
}
