pub async fn placeholder(fx: &super::Fixture) {
    let _ = fx;
}
