//! stub
#[derive(Debug, Clone)]
pub struct Metrics;
impl Metrics { pub fn render(&self) -> String { String::new() } }
