// An element that stands in for <style>: the page's policy refuses style elements with text, but lets a script adopt a sheet.
// What is fetched from elsewhere and writes its own style sheets gets this element instead (scripts/vendor.py).

class StyleSheetElement extends HTMLElement {
  #sheet = new CSSStyleSheet();

  get textContent() {
    return "";
  }

  set textContent(text) {
    this.#sheet.replaceSync(text);
  }

  connectedCallback() {
    this.hidden = true;
    document.adoptedStyleSheets.push(this.#sheet);
  }

  disconnectedCallback() {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((sheet) => sheet !== this.#sheet);
  }
}

customElements.define("tclone-style", StyleSheetElement);
