//! Listings of buckets as XML: `ListObjectsV2` of S3, which Google answers as well, and `List Blobs` of Azure.
//!
//! S3: <https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html>;
//! Azure: <https://learn.microsoft.com/rest/api/storageservices/list-blobs>.

use percent_encoding::percent_decode_str;

use super::xml::{XmlElement, visit_elements};

/// One page of the listing of a bucket, without the keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BucketPage {
    /// True if more keys follow.
    pub(super) is_truncated: bool,
    /// Token that requests the next page.
    pub(super) token: Option<String>,
}

/// Reads a page of S3. Calls `visit` with each key and each common prefix, which ends in `/`.
///
/// # Errors
/// Returns a message if the document is not a listing.
pub(super) fn parse_s3(xml: &[u8], mut visit: impl FnMut(&str)) -> Result<BucketPage, String> {
    let mut page = BucketPage::default();
    let mut is_listing = false;
    let mut key = None;
    // The element may follow the keys.
    let is_url_encoded = String::from_utf8_lossy(xml).contains("<EncodingType>url<");
    visit_elements(xml, |element| match element.path {
        "ListBucketResult" => is_listing = true,
        "ListBucketResult/IsTruncated" => page.is_truncated = element.text.trim() == "true",
        "ListBucketResult/NextContinuationToken" => page.token = non_empty(element),
        "ListBucketResult/Contents/Key" | "ListBucketResult/CommonPrefixes/Prefix" if is_url_encoded => {
            key = Some(form_decoded(element.text));
        }
        "ListBucketResult/Contents/Key" | "ListBucketResult/CommonPrefixes/Prefix" => {
            key = Some(element.text.to_owned());
        }
        "ListBucketResult/Contents" | "ListBucketResult/CommonPrefixes" => {
            if let Some(key) = key.take() {
                visit(&key);
            }
        }
        _ => {}
    })?;
    if is_listing { Ok(page) } else { Err("it is XML, but not a ListBucketResult".to_owned()) }
}

/// Reads a page of Azure. Calls `visit` with the name of each blob and each prefix, which ends in `/`. A blob that
/// stands for a directory, as accounts with a hierarchical namespace have them, is passed as a prefix.
///
/// # Errors
/// Returns a message if the document is not a listing.
pub(super) fn parse_azure(xml: &[u8], mut visit: impl FnMut(&str)) -> Result<BucketPage, String> {
    let mut page = BucketPage::default();
    let mut is_listing = false;
    let mut is_directory = false;
    let mut name: Option<String> = None;
    visit_elements(xml, |element| match element.path {
        "EnumerationResults" => is_listing = true,
        "EnumerationResults/NextMarker" => page.token = non_empty(element),
        "EnumerationResults/Blobs/Blob/Name" | "EnumerationResults/Blobs/BlobPrefix/Name" => {
            name = Some(if element.is_encoded { percent_decoded(element.text) } else { element.text.to_owned() });
        }
        "EnumerationResults/Blobs/Blob/Properties/ResourceType" => is_directory = element.text == "directory",
        "EnumerationResults/Blobs/Blob" | "EnumerationResults/Blobs/BlobPrefix" => {
            let slash = if std::mem::take(&mut is_directory) { "/" } else { "" };
            if let Some(name) = name.take() {
                visit(&(name + slash));
            }
        }
        _ => {}
    })?;
    page.is_truncated = page.token.is_some();
    if is_listing { Ok(page) } else { Err("it is XML, but not EnumerationResults".to_owned()) }
}

fn non_empty(element: &XmlElement<'_>) -> Option<String> {
    Some(element.text.to_owned()).filter(|text| !text.is_empty())
}

/// Decodes a key as S3 encodes it for `EncodingType` `url`, with a plus sign for a space.
fn form_decoded(text: &str) -> String {
    percent_decoded(&text.replace('+', " "))
}

fn percent_decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_s3_are_read_with_any_keys() {
        let xml = "<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><Prefix>a/</Prefix>\
                   <Contents><Key>a/</Key><Size>0</Size></Contents>\
                   <Contents><Size>2</Size><Key>a/ü %2F+&amp; </Key><Owner><ID>x</ID></Owner></Contents>\
                   <CommonPrefixes><Prefix>a/b/</Prefix></CommonPrefixes><CommonPrefixes><Prefix>a//</Prefix>\
                   </CommonPrefixes><IsTruncated>true</IsTruncated><NextContinuationToken>t=</NextContinuationToken>\
                   </ListBucketResult>";
        let mut keys = Vec::new();
        let page = parse_s3(xml.as_bytes(), |key| keys.push(key.to_owned())).unwrap();
        assert_eq!(keys, ["a/", "a/ü %2F+& ", "a/b/", "a//"]);
        assert_eq!(page, BucketPage { is_truncated: true, token: Some("t=".to_owned()) });
    }

    #[test]
    fn url_encoded_keys_of_s3_are_decoded() {
        let xml = "<ListBucketResult><Contents><Key>a+b%2Bc%252F%C3%BC%00</Key></Contents>\
                   <EncodingType>url</EncodingType></ListBucketResult>";
        let mut keys = Vec::new();
        let page = parse_s3(xml.as_bytes(), |key| keys.push(key.to_owned())).unwrap();
        assert_eq!((keys, page.is_truncated), (vec!["a b+c%2Fü\0".to_owned()], false));
    }

    #[test]
    fn pages_of_azure_are_read_with_directories() {
        let xml = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults><Blobs>\
                   <Blob><Name>d</Name><Properties><ResourceType>directory</ResourceType></Properties></Blob>\
                   <Blob><Name Encoded=\"true\">x%EF%BF%BE</Name><Properties><Content-Length>1</Content-Length>\
                   </Properties></Blob><BlobPrefix><Name>p/</Name></BlobPrefix></Blobs><NextMarker /></EnumerationResults>";
        let mut keys = Vec::new();
        let page = parse_azure(xml.as_bytes(), |key| keys.push(key.to_owned())).unwrap();
        assert_eq!(
            (keys, page),
            (vec!["d/".to_owned(), "x\u{fffe}".to_owned(), "p/".to_owned()], BucketPage::default())
        );
    }

    #[test]
    fn other_documents_are_not_listings() {
        assert!(parse_s3(b"<Error><Code>NoSuchKey</Code></Error>", |_| ()).is_err());
        assert!(parse_azure(b"<ListBucketResult/>", |_| ()).is_err());
    }
}
