//! The body of a request, if it has one.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::flow::Flow;
use crate::upload::{BodyError, Upload};

/// An upload, or nothing.
pub(crate) struct Outgoing {
    pub upload: Option<Upload>,
    /// Counts what the connection takes.
    pub flow: Arc<Flow>,
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(upload) = &mut self.upload else { return Poll::Ready(None) };
        let next = Pin::new(upload).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &next {
            self.flow.moved(frame.data_ref().map_or(0, |piece| piece.len() as u64));
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.upload.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.upload.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
