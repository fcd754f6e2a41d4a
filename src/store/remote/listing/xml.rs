//! Reads the texts of an XML document. The documents of object stores hold all values as texts of elements.

use quick_xml::Reader;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesStart, Event};

/// Maximum number of elements around a text. Documents of object stores have at most six.
const MAX_DEPTH: usize = 16;

/// Maximum number of characters of a text of the store in a message.
const MAX_MESSAGE_CHARS: usize = 300;

/// An element at its end.
pub(super) struct XmlElement<'a> {
    /// Local names of the elements from the root to this one, joined by `/`.
    pub(super) path: &'a str,
    /// Text in front of the end, since the last tag. For an element without children, this is all of its text.
    pub(super) text: &'a str,
    /// True if the attribute `Encoded` says that the text is percent-encoded.
    pub(super) is_encoded: bool,
}

/// Calls `visit` for each element of a document at its end.
///
/// # Errors
/// Returns a message if the document is not well-formed XML in UTF-8, or is nested too deeply.
pub(super) fn visit_elements(xml: &[u8], mut visit: impl FnMut(&XmlElement<'_>)) -> Result<(), String> {
    let mut reader = Reader::from_reader(xml);
    reader.config_mut().expand_empty_elements = true;
    let (mut path, mut text) = (String::new(), String::new());
    let mut depth = 0;
    let (mut is_encoded, mut has_root) = (false, false);
    loop {
        match reader.read_event().map_err(|error| error.to_string())? {
            Event::Start(tag) => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(format!("elements are nested deeper than {MAX_DEPTH}"));
                }
                has_root = true;
                if !path.is_empty() {
                    path.push('/');
                }
                let name = tag.local_name();
                path.push_str(std::str::from_utf8(name.as_ref()).map_err(|error| error.to_string())?);
                text.clear();
                is_encoded = has_encoded_text(&tag)?;
            }
            Event::End(_) => {
                visit(&XmlElement { path: &path, text: &text, is_encoded });
                depth -= 1;
                path.truncate(path.rfind('/').unwrap_or(0));
                text.clear();
                is_encoded = false;
            }
            Event::Text(part) => text.push_str(&part.decode().map_err(|error| error.to_string())?),
            Event::CData(part) => text.push_str(&part.decode().map_err(|error| error.to_string())?),
            Event::GeneralRef(reference) => {
                if let Some(character) = reference.resolve_char_ref().map_err(|error| error.to_string())? {
                    text.push(character);
                } else {
                    let name = reference.decode().map_err(|error| error.to_string())?;
                    let resolved =
                        resolve_xml_entity(&name).ok_or_else(|| format!("the entity {name:?} is unknown"))?;
                    text.push_str(resolved);
                }
            }
            Event::Eof if depth > 0 => return Err("the document ends early".to_owned()),
            Event::Eof if !has_root => return Err("the document is not XML".to_owned()),
            Event::Eof => return Ok(()),
            Event::Empty(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
}

/// Returns the beginning of a text of the store on one line, for logs.
pub(in crate::store::remote) fn printable(text: &str) -> String {
    let words = text.split(|character: char| character.is_control() || character.is_whitespace());
    let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    line.chars().take(MAX_MESSAGE_CHARS).collect()
}

fn has_encoded_text(tag: &BytesStart<'_>) -> Result<bool, String> {
    let attribute = tag.try_get_attribute("Encoded").map_err(|error| error.to_string())?;
    Ok(attribute.is_some_and(|attribute| attribute.value.eq_ignore_ascii_case(b"true")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(xml: &str) -> Result<Vec<String>, String> {
        let mut texts = Vec::new();
        visit_elements(xml.as_bytes(), |element| {
            texts.push(format!(
                "{}={}{}",
                element.path,
                element.text,
                if element.is_encoded { " encoded" } else { "" }
            ));
        })?;
        Ok(texts)
    }

    #[test]
    fn texts_keep_spaces_references_and_sections() {
        let xml = "\u{feff}<?xml version=\"1.0\"?><!-- c --><a:L xmlns:a='u'><K> &lt;ü&#x41;&amp;+%20 </K>\
                   <N Encoded='true'><![CDATA[<x>]]></N><E/></a:L>";
        assert_eq!(texts(xml).unwrap(), ["L/K= <üA&+%20 ", "L/N=<x> encoded", "L/E=", "L="]);
    }

    #[test]
    fn documents_that_are_not_well_formed_are_refused() {
        for xml in ["", "text", "<a>", "<a></b>", "<a>&unknown;</a>", "<a>&#xffffffff;</a>", "<a", "{\"a\":1}"] {
            assert!(texts(xml).is_err(), "{xml:?}");
        }
        assert!(texts(&"<a>".repeat(MAX_DEPTH + 1)).unwrap_err().contains("nested"));
        assert!(visit_elements(b"<a>\xff</a>", |_| ()).is_err());
    }
}
