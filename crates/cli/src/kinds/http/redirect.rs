//! Follows redirects, as many as were asked for. Each is checked as if a task had named it.

use hyper::Method;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, HeaderMap, HeaderName, LOCATION, USER_AGENT,
};

use super::call::{Answer, Caller, Error};
use super::payload::{Request, checked};

/// What another host may know. Everything else, a key above all, was meant for the first.
const FOR_EVERYBODY: [HeaderName; 4] = [ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, USER_AGENT];

/// Calls until an answer is no redirect, or one too many.
pub(super) async fn follow(caller: &Caller, mut request: Request) -> Result<Answer, Error> {
    for _ in 0..request.redirects {
        let answer = caller.exchange(&request).await?;
        if request.expects(answer.status) {
            return Ok(answer);
        }
        match next(&request, &answer)? {
            Some(next) => request = next,
            None => return Ok(answer),
        }
    }
    caller.exchange(&request).await
}

/// The request that an answer leads to, if it is a redirect.
fn next(request: &Request, answer: &Answer) -> Result<Option<Request>, Error> {
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
    let url = checked(url).map_err(refused)?;
    if request.url.scheme() == "https" && url.scheme() == "http" {
        return Err(refused("it leads from https to http".to_owned()));
    }
    let mut next = request.clone();
    if url.origin() != request.url.origin() {
        next.headers = for_everybody(&request.headers);
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

fn for_everybody(headers: &HeaderMap) -> HeaderMap {
    let known = headers.iter().filter(|(name, _)| FOR_EVERYBODY.contains(name));
    known.map(|(name, value)| (name.clone(), value.clone())).collect()
}
