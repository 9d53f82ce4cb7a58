//! Reads the parts of a multipart response, and the parts of such a part, while they arrive.

use bytes::Bytes;
use turnwise_outbound::{Answer, Error, Fault};

use crate::multipart::{Event, Headers, Parser};

/// The source of a multipart body.
pub(crate) trait Body: Send {
    /// The next piece; `None` at the proper end.
    fn piece(&mut self) -> impl Future<Output = Result<Option<Bytes>, Error>> + Send;
    /// The response that it is, or is a part of.
    fn answer(&self) -> &Answer;
    fn answer_mut(&mut self) -> &mut Answer;

    /// Adds the origin of the body to an error.
    fn fault(&self, fault: Fault) -> Error {
        self.answer().fault(fault)
    }
}

impl Body for Answer {
    fn piece(&mut self) -> impl Future<Output = Result<Option<Bytes>, Error>> + Send {
        self.chunk()
    }

    fn answer(&self) -> &Answer {
        self
    }

    fn answer_mut(&mut self) -> &mut Answer {
        self
    }
}

/// A part is a body as well.
impl<B: Body> Body for &mut Parts<B> {
    fn piece(&mut self) -> impl Future<Output = Result<Option<Bytes>, Error>> + Send {
        self.data()
    }

    fn answer(&self) -> &Answer {
        self.body.answer()
    }

    fn answer_mut(&mut self) -> &mut Answer {
        self.body.answer_mut()
    }
}

/// A multipart body that is parsed while it arrives.
pub(crate) struct Parts<B> {
    body: B,
    parser: Parser,
}

impl<B: Body> Parts<B> {
    pub fn new(body: B, boundary: &str) -> Self {
        Self { body, parser: Parser::new(boundary) }
    }

    pub fn fault(&self, fault: Fault) -> Error {
        self.body.fault(fault)
    }

    pub fn malformed(&self, cause: impl std::fmt::Display) -> Error {
        self.fault(Fault::Malformed(cause.to_string()))
    }

    /// The next part's headers; `None` after the last part. Skips the rest of the previous part.
    pub async fn next_part(&mut self) -> Result<Option<Headers>, Error> {
        loop {
            match self.event().await? {
                Event::Part(headers) => return Ok(Some(headers)),
                Event::End => return Ok(None),
                Event::Data(_) | Event::PartEnd | Event::NeedMore => {}
            }
        }
    }

    /// The next piece of the part's content; `None` at its end.
    pub async fn data(&mut self) -> Result<Option<Bytes>, Error> {
        match self.event().await? {
            Event::Data(piece) => Ok(Some(piece)),
            Event::PartEnd => Ok(None),
            Event::Part(_) | Event::End | Event::NeedMore => {
                Err(self.malformed("a multipart body without a part"))
            }
        }
    }

    /// The complete content of the part, which is a document.
    pub async fn doc(&mut self) -> Result<Vec<u8>, Error> {
        let mut doc = Vec::new();
        while let Some(piece) = self.data().await? {
            let most = self.body.answer().max_document_bytes();
            if doc.len() + piece.len() > most {
                return Err(self.fault(Fault::TooLarge(most)));
            }
            self.body.answer_mut().hold(doc.len() + piece.len()).await?;
            doc.extend_from_slice(&piece);
        }
        Ok(doc)
    }

    async fn event(&mut self) -> Result<Event, Error> {
        loop {
            match self.parser.next().map_err(|cause| self.malformed(cause))? {
                Event::NeedMore => match self.body.piece().await? {
                    Some(piece) => self.parser.push(&piece),
                    None => {
                        let ended = self.parser.finish();
                        ended.map_err(|cause| self.fault(Fault::BrokeOff(cause.to_string())))?;
                        return Ok(Event::End);
                    }
                },
                event => return Ok(event),
            }
        }
    }
}
