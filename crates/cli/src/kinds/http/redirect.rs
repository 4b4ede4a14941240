//! Follows redirects, as many as were asked for. Each is checked as if a task had named it.

use hyper::Method;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, HeaderMap, HeaderName, LOCATION, USER_AGENT,
};

use super::client::{Error, HttpClient, HttpResponse};
use super::payload::{Request, check_url};

/// What another host may know. Everything else, a key above all, was meant for the first.
const HEADERS_FOR_ANY_ORIGIN: [HeaderName; 4] = [ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, USER_AGENT];

/// Calls until an answer is no redirect, or one too many.
pub(super) async fn follow(
    caller: &HttpClient,
    mut request: Request,
) -> Result<HttpResponse, Error> {
    for _ in 0..request.redirects {
        let answer = caller.exchange(&request).await?;
        if request.expects(answer.status) {
            return Ok(answer);
        }
        match redirect_request(&request, &answer)? {
            Some(next) => request = next,
            None => return Ok(answer),
        }
    }
    caller.exchange(&request).await
}

/// The request that an answer leads to, if it is a redirect.
fn redirect_request(request: &Request, answer: &HttpResponse) -> Result<Option<Request>, Error> {
    if !matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = answer.headers.get(LOCATION) else { return Ok(None) };
    let refused = |why: String| Error::Refused(format!("a redirect is refused: {why}"));
    let location = location.to_str().map_err(|_| refused("it is not text".to_owned()))?;
    if location.contains('\\') {
        return Err(refused("it contains a backslash".to_owned()));
    }
    let url = request.url.join(location).map_err(|error| refused(error.to_string()))?;
    let url = check_url(url).map_err(refused)?;
    if request.url.scheme() == "https" && url.scheme() == "http" {
        return Err(refused("it leads from https to http".to_owned()));
    }
    let mut next = request.clone();
    if url.origin() != request.url.origin() {
        next.headers = headers_for_any_origin(&request.headers);
    }
    // As browsers do it: all but 307 and 308 turn a POST into a GET.
    if !matches!(answer.status, 307 | 308) && !matches!(request.method, Method::GET | Method::HEAD)
    {
        next.method = Method::GET;
        next.body = Bytes::new();
        next.headers.remove(CONTENT_TYPE);
    }
    next.url = url;
    Ok(Some(next))
}

fn headers_for_any_origin(headers: &HeaderMap) -> HeaderMap {
    let known = headers.iter().filter(|(name, _)| HEADERS_FOR_ANY_ORIGIN.contains(name));
    known.map(|(name, value)| (name.clone(), value.clone())).collect()
}
